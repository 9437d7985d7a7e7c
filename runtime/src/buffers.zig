//! Memory for what has no place of its own: buffers of functions, values of a program with control flow. It is counted who
//! holds it, and what nobody holds is taken again: a loop whose sizes are steady maps nothing.
const std = @import("std");
const abi = @import("abi.zig");
const message = @import("message.zig");
const platform = @import("platform.zig");
const Error = message.Error;

/// Larger ones are mapped each by itself, and can be given back to the system.
const largest_of_arena = 2048;
const large = 1 << 20;
/// Four to a doubling: an array that grows from turn to turn needs another buffer now and then, not in every turn.
const classes = 192;
/// One that has up to twice as much will do.
const good_enough = 4;

pub const Buffer = struct {
    memory: []align(abi.alignment) u8 = &.{},
    holders: u32 = 0,
    class: u8 = 0,
    /// In the list of those that nobody holds.
    next: ?*Buffer = null,
    /// The one that was made before it.
    older: ?*Buffer = null,

    pub fn hold(buffer: *Buffer) *Buffer {
        buffer.holders += 1;
        return buffer;
    }
};

pub const Buffers = struct {
    arena: std.heap.ArenaAllocator = .init(std.heap.page_allocator),
    unused: [classes]?*Buffer = @splat(null),
    newest: ?*Buffer = null,
    /// Those whose memory was given back to the system.
    bare: ?*Buffer = null,

    /// A buffer of at least `size` bytes, which may be 0, held by the caller. Its contents are anything.
    pub fn take(buffers: *Buffers, size: usize) Error!*Buffer {
        const wanted = @max(size, abi.alignment);
        const power = std.math.log2_int(usize, wanted - 1);
        const whole = @as(usize, 1) << power;
        const capacity = std.mem.alignForward(usize, wanted, @max(whole / 4, abi.alignment));
        const class: u8 = @intCast(4 * @as(usize, power) + (capacity - whole) * 4 / whole - 1);
        for (buffers.unused[class..@min(class + good_enough + 1, classes)]) |*list| if (list.*) |found| {
            list.* = found.next;
            found.holders = 1;
            return found;
        };
        // What is large is not kept in every size that it ever had: the largest call bounds the memory.
        if (capacity >= large) buffers.trim(large);
        return buffers.make(capacity, class) catch {
            buffers.trim(largest_of_arena + 1);
            return buffers.make(capacity, class);
        };
    }

    pub fn give(buffers: *Buffers, buffer: *Buffer) void {
        buffer.holders -= 1;
        if (buffer.holders != 0) return;
        buffer.next = buffers.unused[buffer.class];
        buffers.unused[buffer.class] = buffer;
    }

    /// Free all of it, whoever holds it.
    pub fn free(buffers: *Buffers) void {
        var left = buffers.newest;
        while (left) |buffer| : (left = buffer.older) unmap(buffer);
        buffers.arena.deinit();
        buffers.* = .{};
    }

    fn make(buffers: *Buffers, capacity: usize, class: u8) Error!*Buffer {
        const arena = buffers.arena.allocator();
        const memory: []align(abi.alignment) u8 = if (capacity > largest_of_arena)
            try platform.map(capacity)
        else
            arena.alignedAlloc(u8, .fromByteUnits(abi.alignment), capacity) catch return noMemory(capacity);
        const buffer = buffers.bare orelse arena.create(Buffer) catch {
            if (capacity > largest_of_arena) platform.unmap(@alignCast(memory));
            return noMemory(capacity);
        };
        if (buffer == buffers.bare) buffers.bare = buffer.next;
        buffer.* = .{ .memory = memory, .holders = 1, .class = class, .older = buffers.newest };
        buffers.newest = buffer;
        return buffer;
    }

    /// Give back to the system what nobody holds and has at least so many bytes.
    fn trim(buffers: *Buffers, least: usize) void {
        for (&buffers.unused) |*list| {
            const first = list.* orelse continue;
            if (first.memory.len < least) continue;
            list.* = null;
            var left: ?*Buffer = first;
            while (left) |buffer| : (left = buffer.next) unmap(buffer);
        }
        var link = &buffers.newest;
        while (link.*) |buffer| {
            if (buffer.memory.len != 0) {
                link = &buffer.older;
                continue;
            }
            link.* = buffer.older;
            buffer.next = buffers.bare;
            buffers.bare = buffer;
        }
    }
};

fn unmap(buffer: *Buffer) void {
    if (buffer.memory.len > largest_of_arena) platform.unmap(@alignCast(buffer.memory));
    buffer.memory = &.{};
}

fn noMemory(size: usize) Error {
    return message.fail(error.Memory, "memory: expected {d} bytes, found less\nfix: free memory, or take a smaller model", .{size});
}
