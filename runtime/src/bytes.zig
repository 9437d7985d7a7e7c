//! `memcpy`, `memmove` and `memset`, for kernels and for the runtime itself. Those that the compiler brings are loops of single
//! bytes where all is to be small.
const builtin = @import("builtin");

comptime {
    @export(&copy, .{ .name = "memcpy", .linkage = .weak, .visibility = .hidden });
    @export(&move, .{ .name = "memmove", .linkage = .weak, .visibility = .hidden });
    @export(&fill, .{ .name = "memset", .linkage = .weak, .visibility = .hidden });
}

/// What is moved at once, the largest first: while there are as many bytes, and where they lie as the CPU wants it.
const units = if (has_vectors) .{ @Vector(64, u8), @Vector(16, u8), u64, u32, u8 } else .{ @Vector(4, u64), u64, u32, u8 };
const has_vectors = builtin.cpu.arch != .riscv64;

fn alignmentOf(comptime Unit: type) usize {
    return if (has_vectors) 1 else @min(8, @sizeOf(Unit));
}

pub fn copy(to: [*]u8, from: [*]const u8, size: usize) callconv(.c) [*]u8 {
    @setRuntimeSafety(false);
    var done: usize = 0;
    inline for (units) |Unit| {
        const alignment = comptime alignmentOf(Unit);
        if ((@intFromPtr(to + done) | @intFromPtr(from + done)) % alignment == 0) while (size - done >= @sizeOf(Unit)) : (done += @sizeOf(Unit)) {
            @as(*align(alignment) Unit, @ptrCast(@alignCast(to + done))).* = @as(*align(alignment) const Unit, @ptrCast(@alignCast(from + done))).*;
            keep();
        };
    }
    return to;
}

/// As `copy`, of bytes that may overlap.
pub fn move(to: [*]u8, from: [*]const u8, size: usize) callconv(.c) [*]u8 {
    @setRuntimeSafety(false);
    if (@intFromPtr(to) -% @intFromPtr(from) >= size) return copy(to, from, size);
    var left = size;
    inline for (units) |Unit| {
        const alignment = comptime alignmentOf(Unit);
        if ((@intFromPtr(to + left) | @intFromPtr(from + left)) % alignment == 0) while (left >= @sizeOf(Unit)) {
            left -= @sizeOf(Unit);
            @as(*align(alignment) Unit, @ptrCast(@alignCast(to + left))).* = @as(*align(alignment) const Unit, @ptrCast(@alignCast(from + left))).*;
            keep();
        };
    }
    return to;
}

pub fn fill(to: [*]u8, value: c_int, size: usize) callconv(.c) [*]u8 {
    @setRuntimeSafety(false);
    const byte: u8 = @truncate(@as(c_uint, @bitCast(value)));
    var done: usize = 0;
    inline for (units) |Unit| {
        const alignment = comptime alignmentOf(Unit);
        const bytes: @Vector(@sizeOf(Unit), u8) = @splat(byte);
        if (@intFromPtr(to + done) % alignment == 0) while (size - done >= @sizeOf(Unit)) : (done += @sizeOf(Unit)) {
            @as(*align(alignment) Unit, @ptrCast(@alignCast(to + done))).* = @bitCast(bytes);
            keep();
        };
    }
    return to;
}

/// Keeps the compiler from making calls of its own functions out of these loops.
inline fn keep() void {
    asm volatile ("" ::: .{ .memory = true });
}
