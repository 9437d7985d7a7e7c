//! A function that is ready to run: its tensors, and the arguments of every call, made once. A run allocates nothing but
//! for buffers whose size depends on the call, and those only grow.
const std = @import("std");
const abi = @import("abi.zig");
const memory = @import("buffers.zig");
const message = @import("message.zig");
const p = @import("program.zig");
const platform = @import("platform.zig");
const pool = @import("pool.zig");
const Buffer = memory.Buffer;
const Error = message.Error;
const Tensor = @import("values.zig").Tensor;

/// Where the tensors of a function lie.
pub const Areas = struct {
    weights: []const u8,
    constants: []const u8,
    prepared: []const [*]u8,
    scratch: []u8 = &.{},
    kept: []u8 = &.{},
    states: []const State = &.{},
};

/// Where a session keeps what it keeps of a state: all of one that grows; of another, what it was and what it is.
pub const State = struct { memory: platform.Memory, size: usize, is_second: bool = false };

const Patch = struct { argument: u32, slot: u32 };
/// A place in the program that calls a kernel, by its `number`; `spent` there while it was profiled.
pub const Call = struct {
    number: usize,
    kernel: abi.Kernel,
    arguments: []abi.Any,
    patches: []const Patch,
    spent: Spent = .{},
};

/// Elements of a kernel's operands that are worth another thread: a softmax of half of them takes 3 microseconds on one
/// thread of a Zen 4, as on two; of twice as many two take 0.8 of the time.
const worth_threads = 16384;

pub const Spent = struct { calls: u64 = 0, nanoseconds: u64 = 0 };

pub const Frame = struct {
    function: *const p.Function,
    tensors: []abi.Tensor,
    /// Bytes that are behind each tensor's address: what a view of it may take.
    room: []u64,
    heap: []i64,
    /// By the operation, null where it calls nothing.
    calls: []?Call,
    /// Where its buffers are from, and those that it has.
    supply: *memory.Buffers,
    buffers: []?*Buffer,
    /// What buffers outgrew: tensors of this run, and results that were handed out, may lie there until the next run.
    outgrown: []*Buffer,
    outgrown_count: usize,
    /// The buffer that each tensor lies in, if any.
    owners: []?*Buffer,
    states: []const State,
    program: *const p.Program,

    /// Fill `frame`, which must stay where it is. `arena` and what `areas` names must live as long.
    pub fn init(frame: *Frame, arena: std.mem.Allocator, program: *const p.Program, function: *const p.Function, kernels: []const abi.Kernel, areas: Areas, supply: *memory.Buffers) error{OutOfMemory}!void {
        frame.function = function;
        frame.states = areas.states;
        frame.program = program;
        frame.heap = try arena.alignedAlloc(i64, .@"64", function.heap); // shape functions store it in vectors
        @memset(frame.heap, 0);
        frame.supply = supply;
        frame.buffers = try arena.alloc(?*Buffer, function.buffers);
        @memset(frame.buffers, null);
        frame.owners = try arena.alloc(?*Buffer, function.rows.len);
        @memset(frame.owners, null);
        var storages: usize = 0;
        for (function.operations) |operation| storages += @intFromBool(operation.code == .storage);
        frame.outgrown = try arena.alloc(*Buffer, storages);
        frame.outgrown_count = 0;
        frame.tensors = try arena.alloc(abi.Tensor, function.rows.len);
        frame.room = try arena.alloc(u64, function.rows.len);
        for (function.rows, frame.tensors, frame.room) |row, *tensor, *room| {
            const shape = try arena.dupe(i64, row.shape);
            const place_of: ?[*]const u8 = switch (row.kind) {
                .input, .shape, .dynamic => null,
                .weight => areas.weights.ptr + @as(usize, @intCast(program.weights[@intCast(row.where)].offset)),
                .prepared => areas.prepared[@intCast(row.where)],
                .constant => areas.constants.ptr + @as(usize, @intCast(row.where)),
                .scratch => areas.scratch.ptr + @as(usize, @intCast(row.where)),
                .kept => areas.kept.ptr + @as(usize, @intCast(row.where)),
            };
            tensor.* = .{ .data = @constCast(place_of), .rank = @intCast(row.shape.len), .dtype = row.dtype, .shape = shape.ptr };
            room.* = if (place_of == null) 0 else row.size().?;
        }
        frame.calls = try arena.alloc(?Call, function.operations.len);
        for (function.operations, frame.calls) |operation, *call| call.* = switch (operation.code) {
            .call => try frame.makeCall(arena, operation.words, kernels),
            .compute => try frame.makeCall(arena, operation.words[1..], kernels),
            else => null,
        };
    }

    fn makeCall(frame: *Frame, arena: std.mem.Allocator, words: []const i64, kernels: []const abi.Kernel) error{OutOfMemory}!Call {
        const arguments = try arena.alloc(abi.Any, words.len - 2);
        var patches: std.ArrayList(Patch) = .empty;
        for (words[2..], arguments, 0..) |word, *argument, index| {
            const value = word >> 2;
            argument.* = switch (word & 3) {
                0 => .tensor(&frame.tensors[@intCast(value)]),
                1 => .integer(0),
                2 => .integer(value),
                else => .tensor(try frame.makeHeapTensor(arena, value)),
            };
            if (word & 3 == 1) try patches.append(arena, .{ .argument = @intCast(index), .slot = @intCast(value) });
        }
        const called: usize = @intCast(words[0]);
        return .{ .number = called, .kernel = kernels[called], .arguments = arguments, .patches = patches.items };
    }

    /// The first slots of the heap, as kernels take them that compute sizes.
    fn makeHeapTensor(frame: *Frame, arena: std.mem.Allocator, size: i64) error{OutOfMemory}!*abi.Tensor {
        const shape = try arena.dupe(i64, &.{size});
        const tensor = try arena.create(abi.Tensor);
        tensor.* = .{ .data = @ptrCast(frame.heap.ptr), .rank = 1, .dtype = .{ .code = 0, .bits = 64, .lanes = 1 }, .shape = shape.ptr };
        return tensor;
    }

    /// Give back all buffers: what lies in them may be held by others.
    pub fn release(frame: *Frame) void {
        frame.releaseOutgrown();
        for (frame.buffers) |*slot| if (slot.*) |buffer| {
            frame.supply.give(buffer);
            slot.* = null;
        };
    }

    fn releaseOutgrown(frame: *Frame) void {
        for (frame.outgrown[0..frame.outgrown_count]) |buffer| frame.supply.give(buffer);
        frame.outgrown_count = 0;
    }

    /// Put an input in its place, of a shape that fits its port.
    pub fn bind(frame: *Frame, input: usize, data: ?[*]u8, shape: []const i64) void {
        frame.tensors[input].data = data;
        @memcpy(frame.tensors[input].shape[0..shape.len], shape);
        frame.room[input] = p.bytes(frame.function.rows[input].dtype, shape).?;
    }

    /// Put a value in the place of a region's input, if it is what the region takes.
    pub fn give(frame: *Frame, input: usize, value: *const Tensor) Error!void {
        const row = &frame.function.rows[input];
        const is_shape = row.kind == .shape;
        if (value.rank != row.shape.len or !(is_shape or value.dtype.equals(row.dtype))) return sizes("a value of another dtype or rank than the region takes", .{});
        for (row.shape, value.extents()) |wanted, extent| if (wanted >= 0 and wanted != extent) return sizes("{d} where {d} goes with the others", .{ extent, wanted });
        frame.owners[input] = value.owner;
        if (is_shape) @memcpy(frame.tensors[input].shape[0..value.rank], value.extents()) else frame.bind(input, value.data, value.extents());
    }

    /// A result, held by the caller.
    pub fn resultOf(frame: *const Frame, index: i64) Tensor {
        const at: usize = @intCast(index);
        const tensor = &frame.tensors[at];
        var value: Tensor = .of(tensor.dtype, tensor.shape[0..@intCast(tensor.rank)]);
        value.data = tensor.data;
        value.owner = frame.owners[at];
        return value.hold();
    }

    /// Run the function: its results are in `function.results()`. The inputs' shapes are those of `function`.
    pub fn run(frame: *Frame, cancelled: *const std.atomic.Value(bool), is_profiling: bool) Error!void {
        frame.releaseOutgrown();
        for (frame.function.operations, frame.calls) |operation, *call| {
            const w = operation.words;
            switch (operation.code) {
                .call => _ = try frame.runCall(&call.*.?, cancelled, is_profiling),
                .compute => frame.heap[@intCast(w[0])] = try frame.runCall(&call.*.?, cancelled, is_profiling),
                .match => {
                    const tensor = &frame.tensors[@intCast(w[0])];
                    try frame.match(tensor.shape[0..@intCast(tensor.rank)], w[2..]);
                },
                .storage => try frame.grow(@intCast(w[0]), frame.number(w[1..])),
                .tensor => {
                    const buffer = frame.buffers[@intCast(w[1])].?;
                    const offset = frame.number(w[2..]);
                    if (offset < 0 or offset > buffer.memory.len or @mod(offset, abi.alignment) != 0) return sizes("an offset of {d}", .{offset});
                    const start: usize = @intCast(offset);
                    try frame.place(@intCast(w[0]), buffer.memory.ptr + start, buffer.memory.len - start, w[5..]);
                    frame.owners[@intCast(w[0])] = buffer;
                },
                .view => {
                    const source: usize = @intCast(w[1]);
                    try frame.place(@intCast(w[0]), frame.tensors[source].data, frame.room[source], w[3..]);
                    frame.owners[@intCast(w[0])] = frame.owners[source];
                },
                .state => {
                    const state = frame.states[@intCast(w[1])];
                    const most = frame.program.states[@intCast(w[1])].most;
                    const wanted = frame.number(w[3..]);
                    if (wanted > most) return message.fail(error.Input, "state: expected at most {d} along its axis, found {d}\nfix: rewind the session, or compile with a larger compile.state_max", .{ most, wanted });
                    try frame.place(@intCast(w[0]), state.memory.ptr, state.size, w[3..]);
                },
                .done => return,
            }
        }
    }

    /// Leave it to one thread where waking others takes longer than they would save: where sizes depend on the call,
    /// the compiler chose threads for a lot.
    noinline fn chooseThreads(frame: *const Frame, call: *const Call) void {
        var elements: u64 = 0; // an array of 2^46 bytes is refused
        if (frame.buffers.len == 0) elements = worth_threads else for (call.arguments) |argument| if (argument.of()) |tensor| {
            var size: u64 = 1;
            for (tensor.shape[0..@as(u32, @bitCast(tensor.rank))]) |extent| size *%= @bitCast(extent);
            elements +%= size;
        };
        pool.keepAlone(elements < worth_threads);
    }

    /// Call a kernel; the whole number that it returns, where it returns one.
    pub fn runCall(frame: *Frame, call: *Call, cancelled: *const std.atomic.Value(bool), is_profiling: bool) Error!i64 {
        if (cancelled.load(.monotonic)) return message.fail(error.Cancelled, "run: expected to end, found that it was cancelled\nfix: call again", .{});
        for (call.patches) |patch| call.arguments[patch.argument].value.integer = frame.heap[patch.slot];
        var result: abi.Any = .integer(0);
        const start = if (is_profiling) platform.now(.wall) else 0;
        frame.chooseThreads(call);
        const failed = call.kernel(null, call.arguments.ptr, @intCast(call.arguments.len), &result) != 0;
        if (is_profiling) {
            call.spent.calls += 1;
            call.spent.nanoseconds += platform.now(.wall) - start;
        }
        if (!failed) return result.value.integer;
        if (message.last()[0] == 0) return message.fail(error.Kernel, "kernel: expected to end, found an error without a word\nfix: build the library anew", .{});
        return error.Kernel; // it said what
    }

    fn number(frame: *const Frame, words: []const i64) i64 {
        return if (words[0] == 0) words[1] else frame.heap[@intCast(words[1])];
    }

    fn match(frame: *Frame, values: []const i64, words: []const i64) Error!void {
        for (values, 0..) |value, axis| {
            const word = words[2 * axis + 1];
            const wanted = switch (words[2 * axis]) {
                0 => word,
                3 => frame.heap[@intCast(word)],
                1 => {
                    frame.heap[@intCast(word)] = value;
                    continue;
                },
                else => continue,
            };
            if (value != wanted) return sizes("{d} where {d} goes with the others", .{ value, wanted });
        }
    }

    fn grow(frame: *Frame, index: usize, size: i64) Error!void {
        if (size < 0 or size > 1 << 46) return sizes("an array of {d} bytes", .{size});
        const before = frame.buffers[index];
        if (before) |buffer| if (buffer.memory.len >= size) return;
        frame.buffers[index] = try frame.supply.take(@intCast(size));
        if (before) |buffer| {
            frame.outgrown[frame.outgrown_count] = buffer;
            frame.outgrown_count += 1;
        }
    }

    /// `words`: a number for each axis.
    fn place(frame: *Frame, index: usize, data: ?[*]u8, room: u64, words: []const i64) Error!void {
        const tensor = &frame.tensors[index];
        const shape = tensor.shape[0..@intCast(tensor.rank)];
        for (shape, 0..) |*extent, axis| extent.* = frame.number(words[2 * axis ..]);
        const size = p.bytes(tensor.dtype, shape) orelse return sizes("an array with a negative extent, or too many elements", .{});
        if (size > room) return sizes("an array of {d} bytes in {d}", .{ size, room });
        tensor.data = data;
        frame.room[index] = room;
    }
};

fn sizes(comptime what: [:0]const u8, arguments: anytype) Error {
    return message.failIn(error.Input, &.{ .head = "inputs: expected sizes that go together, found ", .tail = "\nfix: give inputs of other sizes" }, what, arguments);
}
