//! A session: the memory that calls of a model need, and their threads. One call at a time may use it.
const std = @import("std");
const abi = @import("abi.zig");
const execution = @import("execution.zig");
const frame = @import("frame.zig");
const memory_of = @import("buffers.zig");
const message = @import("message.zig");
const p = @import("program.zig");
const platform = @import("platform.zig");
const Model = @import("model.zig").Model;
const pool = @import("pool.zig");
const Error = message.Error;
const Tensor = @import("values.zig").Tensor;

/// The caller's memory, rows without gaps.
pub const Array = extern struct { data: ?[*]u8, size: usize, shape: [abi.max_rank]i64 };

pub const Session = struct {
    model: *const Model,
    arena: std.heap.ArenaAllocator = .init(std.heap.page_allocator),
    threads: pool.Pool = .{},
    cpus: [pool.max_threads]u32 = undefined,
    frames: []frame.Frame = &.{},
    scratch: platform.Memory = &.{},
    buffers: memory_of.Buffers = .{},
    /// What runs the blocks of a model that has some.
    blocks: ?execution.Execution = null,
    given: []Tensor = &.{},
    /// Copies of inputs that are not aligned as kernels need them.
    staged: []platform.Memory = &.{},
    extents: []i64 = &.{},
    states: []frame.State = &.{},
    /// How far states have grown.
    length: i64 = 0,
    is_profiling: bool = false,
    is_busy: std.atomic.Value(bool) = .init(false),
    is_cancelled: std.atomic.Value(bool) = .init(false),
    /// Who started it: a process that was forked has the memory, and not the threads.
    process: i32 = 0,

    /// The session must stay where it is. After an error, `stop`.
    pub fn start(session: *Session, threads: u32) Error!void {
        session.process = platform.process();
        try session.setThreads(threads);
        session.scratch = try platform.map(session.model.scratch());
        session.makeTables() catch |failure| if (failure != error.OutOfMemory) return @errorCast(failure) else return message.fail(error.Memory, "memory: expected room for the session's tables, found none\nfix: free memory", .{});
    }

    pub fn stop(session: *Session) void {
        if (session.process == platform.process()) session.threads.stop() else session.threads.free();
        session.buffers.free();
        for (session.staged) |memory| platform.unmap(memory);
        for (session.states) |state| platform.unmap(state.memory);
        platform.unmap(session.scratch);
        session.arena.deinit();
    }

    fn makeTables(session: *Session) (Error || error{OutOfMemory})!void {
        const arena = session.arena.allocator();
        const model = session.model;
        const staged = try arena.alloc(platform.Memory, model.program.inputs.len);
        @memset(staged, &.{});
        session.staged = staged;
        session.extents = try arena.alloc(i64, model.program.extents.len);
        const states = try arena.alloc(frame.State, model.program.states.len);
        for (states) |*state| state.* = .{ .memory = &.{}, .size = 0 };
        session.states = states;
        for (states, model.program.states) |*state, kind| {
            state.size = @intCast(kind.size().?);
            const both: usize = if (kind.most == 0) 2 else 1;
            state.memory = try platform.map(both * std.mem.alignForward(usize, state.size, abi.alignment));
        }
        var areas = model.areas();
        areas.scratch = session.scratch;
        areas.states = states;
        const frames = try arena.alloc(frame.Frame, model.program.functions.len);
        const regions = try arena.alloc(?*frame.Frame, frames.len);
        var count: usize = 0;
        for (model.program.functions, regions) |*function, *region| {
            region.* = null;
            if (function.role == .prepare) continue;
            try frames[count].init(arena, &model.program, function, model.kernels, areas, &session.buffers);
            if (function.role == .region) region.* = &frames[count];
            count += 1;
        }
        session.frames = frames[0..count];
        if (model.program.blocks.len == 0) return;
        session.given = try arena.alloc(Tensor, model.program.inputs.len);
        session.blocks = try .init(arena, &model.program, regions, &session.buffers, &session.is_cancelled);
    }

    pub fn setThreads(session: *Session, threads: u32) Error!void {
        if (threads < 1 or threads > pool.max_threads) return message.fail(error.Usage, "threads: expected 1 to {d}, found {d}\nfix: give a number between", .{ pool.max_threads, threads });
        try session.restart(threads, session.threads.cpus);
    }

    /// Keep threads on CPUs, taken in turn: the first is the caller's, who pins itself. None: threads run anywhere.
    pub fn pin(session: *Session, cpus: []const u32) Error!void {
        if (cpus.len > pool.max_threads) return message.fail(error.Usage, "cpus: expected at most {d}, found {d}\nfix: give one for each thread", .{ pool.max_threads, cpus.len });
        for (cpus) |cpu| if (!platform.canPin(cpu)) return message.fail(error.Usage, "cpus: expected those that this process may use, found {d}\nfix: ask the system which there are: nproc, taskset", .{cpu});
        @memcpy(session.cpus[0..cpus.len], cpus);
        try session.restart(session.threads.threads, session.cpus[0..cpus.len]);
    }

    fn restart(session: *Session, threads: u32, cpus: []const u32) Error!void {
        session.threads.stop();
        session.threads = .{ .cpus = cpus };
        try session.threads.start(threads);
    }

    pub fn forget(session: *Session) void {
        var all = session.places();
        while (all.next()) |place| place.spent = .{};
    }

    /// The places that call kernels, in the program's order.
    pub fn places(session: *const Session) Places {
        return .{ .frames = session.frames };
    }

    pub const Places = struct {
        frames: []const frame.Frame,
        at: usize = 0,

        pub fn next(it: *Places) ?*frame.Call {
            while (it.frames.len > 0) {
                const made = it.frames[0].calls;
                while (it.at < made.len) {
                    it.at += 1;
                    if (made[it.at - 1]) |*call| return call;
                }
                it.* = .{ .frames = it.frames[1..] };
            }
            return null;
        }
    };

    pub fn acquire(session: *Session) Error!void {
        if (session.is_busy.swap(true, .acquire)) return message.fail(error.Usage, "session: expected one call at a time, found another under way\nfix: give each thread a session of its own", .{});
    }

    pub fn give(session: *Session) void {
        session.is_busy.store(false, .release);
    }

    pub fn run(session: *Session, inputs: []const Array, outputs: []Array) Error!void {
        try session.acquire();
        defer session.give();
        try session.compute(inputs, outputs, null);
    }

    /// Run, with all outputs left in the session's memory; whether they lie as `outputs` said before.
    pub fn repeat(session: *Session, inputs: []const Array, outputs: []Array) Error!bool {
        try session.acquire();
        defer session.give();
        var is_same = true;
        try session.compute(inputs, outputs, &is_same);
        return is_same;
    }

    fn compute(session: *Session, inputs: []const Array, outputs: []Array, is_same: ?*bool) Error!void {
        message.clear();
        const program = &session.model.program;
        try session.checkInputs(inputs);
        if (try session.isEmpty(inputs, outputs)) {
            if (is_same) |same| same.* = false;
            return;
        }
        try session.checkConstraints();
        defer session.is_cancelled.store(false, .monotonic);
        const before = pool.enter(.{ .pool = &session.threads, .workspace = &session.threads.workspaces[0] });
        defer _ = pool.enter(before);
        errdefer for (session.threads.workspaces) |*workspace| workspace.reset();
        session.threads.begin();
        defer session.threads.end();
        if (session.blocks) |*blocks| return session.runBlocks(blocks, inputs, outputs, is_same);
        const ready = for (session.frames) |*candidate| {
            if (candidate.function.suits(session.extents)) break candidate;
        } else return session.wrongSizes();
        for (program.inputs, inputs, 0..) |port, input, index| {
            ready.bind(index, try session.stage(index, input), input.shape[0..@intCast(port.rank)]);
        }
        for (program.states, session.states, program.inputs.len..) |kind, *state, index| {
            var shape = kind.input.shape;
            if (kind.most != 0) shape[0] = session.length;
            ready.bind(index, half(state, state.is_second).ptr, shape[0..@intCast(kind.input.rank)]);
        }
        try ready.run(&session.is_cancelled, session.is_profiling);
        const results = ready.function.results();
        for (program.outputs, outputs, results[0..outputs.len]) |port, *output, index| {
            const tensor = &ready.tensors[@intCast(index)];
            try deliver(port, output, tensor.data, tensor.dtype, tensor.shape[0..@intCast(tensor.rank)], is_same);
        }
        try session.keep(ready, results[outputs.len..]);
    }

    /// Keep what a call that succeeded gave of states. What was is left as it is: outputs may lie in it.
    fn keep(session: *Session, ready: *const frame.Frame, results: []const i64) Error!void {
        for (session.model.program.states, session.states, results) |kind, *state, index| {
            const tensor = &ready.tensors[@intCast(index)];
            const shape = tensor.shape[0..@intCast(tensor.rank)];
            if (kind.most != 0) {
                if (shape[0] < 0 or shape[0] > kind.most) return p.damaged("a state of {d}", .{shape[0]});
                session.length = shape[0];
            } else {
                if (p.bytes(tensor.dtype, shape).? != state.size) return p.damaged("a state of another size", .{});
                if (state.size != 0) @memcpy(half(state, !state.is_second), tensor.data.?[0..state.size]);
                state.is_second = !state.is_second;
            }
        }
    }

    /// Forget all but the first `length` entries of states that grow; those that do not grow start anew, at zero.
    pub fn rewind(session: *Session, length: i64) Error!void {
        if (length < 0 or length > session.length) return message.fail(error.Usage, "length: expected 0 to {d}, found {d}\nfix: rewind to what there was", .{ session.length, length });
        if (length == session.length and length != 0) return;
        for (session.model.program.states, session.states) |kind, *state| if (kind.most == 0) {
            if (length != 0) return message.fail(error.Usage, "length: expected 0, since a state that does not grow knows no earlier one, found {d}\nfix: begin anew", .{length});
            @memset(half(state, state.is_second), 0);
        };
        session.length = length;
    }

    fn runBlocks(session: *Session, blocks: *execution.Execution, inputs: []const Array, outputs: []Array, is_same: ?*bool) Error!void {
        const program = &session.model.program;
        for (program.inputs, inputs, session.given, 0..) |port, input, *value, index| {
            value.* = .of(port.dtype, input.shape[0..@intCast(port.rank)]);
            value.data = try session.stage(index, input);
        }
        blocks.is_profiling = session.is_profiling;
        try blocks.run(session.given);
        for (program.outputs, outputs, 0..) |port, *output, index| {
            const value = blocks.output(index);
            if (value.rank != port.rank or !value.dtype.equals(port.dtype)) return p.damaged("an output of another kind", .{});
            try deliver(port, output, value.data, value.dtype, value.extents(), is_same);
        }
    }

    /// Compare the inputs with what the model takes; note the extents that have a name.
    fn checkInputs(session: *Session, inputs: []const Array) Error!void {
        @memset(session.extents, -1);
        if (session.model.program.length) |extent| session.extents[extent] = session.length;
        for (session.model.program.inputs, inputs) |port, input| {
            const shape = input.shape[0..@intCast(port.rank)];
            for (shape, port.shape[0..shape.len], 0..) |extent, wanted, axis| {
                const expected = if (wanted >= 0) wanted else session.extents[@intCast(~wanted)];
                if (extent < 0 or extent > 1 << 40 or (expected >= 0 and extent != expected)) return wrongExtent(port, axis, expected, extent);
                if (wanted < 0) session.extents[@intCast(~wanted)] = extent;
            }
            const size = p.bytes(port.dtype, shape) orelse return wrongExtent(port, 0, -1, shape[0]);
            if (size != input.size) return message.fail(error.Input, "input {s}: expected {d} bytes for its shape, found {d}\nfix: give an array of the model's dtype, without gaps", .{ port.name, size, input.size });
            if (input.data == null and size != 0) return message.fail(error.Input, "input {s}: expected {d} bytes, found no memory\nfix: give a pointer to the array", .{ port.name, size });
        }
    }

    /// Whether there is nothing to compute: an input without elements, and outputs that have none by that.
    fn isEmpty(session: *const Session, inputs: []const Array, outputs: []Array) Error!bool {
        const program = &session.model.program;
        var has_zero = false;
        for (program.inputs, inputs) |port, input| for (input.shape[0..@intCast(port.rank)]) |extent| {
            if (extent == 0) has_zero = true;
        };
        if (!has_zero) return false;
        for (program.outputs) |port| {
            for (port.shape[0..@intCast(port.rank)]) |extent| {
                if (extent == 0 or (extent < 0 and session.extents[@intCast(~extent)] == 0)) break;
            } else return false;
        }
        for (program.outputs, outputs) |port, *output| {
            for (port.shape[0..@intCast(port.rank)], output.shape[0..@intCast(port.rank)]) |extent, *shape| {
                shape.* = if (extent >= 0) extent else @max(0, session.extents[@intCast(~extent)]);
            }
            output.size = 0;
        }
        return true;
    }

    fn checkConstraints(session: *const Session) Error!void {
        for (session.model.program.constraints) |constraint| {
            if (constraint.holds(session.extents)) continue;
            var found: Text = .{};
            for (session.model.program.extents, session.extents) |name, size| if (size >= 0) found.addExtent(name, size);
            return message.fail(error.Input, "inputs: expected sizes that go together, found {s}: {s}\nfix: give inputs of other sizes", .{ found.all(), constraint.text });
        }
    }

    fn wrongSizes(session: *const Session) Error {
        const extents = session.model.program.extents;
        var wanted: Text = .{};
        var found: Text = .{};
        for (session.frames) |ready| {
            if (wanted.size != 0) wanted.add(";", .{});
            for (ready.function.fixed) |fixed| wanted.addExtent(extents[fixed.extent], fixed.size);
        }
        for (extents, session.extents) |name, size| if (size >= 0) found.addExtent(name, size);
        return message.fail(error.Input, "inputs: expected sizes that the library was compiled for: {s}, found {s}\nfix: fill the inputs up to one of them, have Engine(..., pad=True) of Python do it, or compile with `compile.open_form=true`", .{ wanted.all(), found.all() });
    }

    /// Memory of the input that is aligned: the caller's, or a copy.
    fn stage(session: *Session, index: usize, input: Array) Error![*]u8 {
        const copy = &session.staged[index];
        if (input.data) |data| if (@intFromPtr(data) % abi.alignment == 0) return data;
        if (copy.len < @max(1, input.size)) {
            platform.unmap(copy.*);
            copy.* = &.{};
            copy.* = try platform.map(input.size);
        }
        if (input.data) |data| @memcpy(copy.*[0..input.size], data[0..input.size]);
        return copy.ptr;
    }
};

/// A list of sizes for a message, cut where it becomes too long.
const Text = struct {
    room: [400]u8 = undefined,
    size: usize = 0,

    fn add(text: *Text, comptime format: []const u8, arguments: anytype) void {
        text.size += message.fill(text.room[text.size..], format, arguments);
    }

    fn addExtent(text: *Text, name: []const u8, size: i64) void {
        const between = if (text.size == 0) "" else if (text.room[text.size - 1] == ';') " " else ", ";
        text.add("{s}{s}={d}", .{ between, name, size });
    }

    fn all(text: *const Text) []const u8 {
        return text.room[0..text.size];
    }
};

fn half(state: *const frame.State, is_second: bool) []u8 {
    const start = if (is_second) std.mem.alignForward(usize, state.size, abi.alignment) else 0;
    return state.memory[start..][0..state.size];
}

fn wrongExtent(port: p.Port, axis: usize, expected: i64, found: i64) Error {
    if (expected < 0) return message.fail(error.Input, "input {s}: expected a size along axis {d}, found {d}\nfix: give an array that fits the model", .{ port.name, axis, found });
    return message.fail(error.Input, "input {s}: expected {d} along axis {d}, found {d}\nfix: give an array that fits the model and its other inputs", .{ port.name, expected, axis, found });
}

fn deliver(port: p.Port, output: *Array, data: ?[*]u8, dtype: abi.Dtype, shape: []const i64, is_same: ?*bool) Error!void {
    const size: usize = @intCast(p.bytes(dtype, shape).?);
    if (is_same) |same| {
        if (output.data != data or output.size != size or !std.mem.eql(i64, output.shape[0..shape.len], shape)) same.* = false;
        output.data = null;
    }
    @memcpy(output.shape[0..shape.len], shape);
    if (output.data) |room| {
        if (output.size < size) return message.fail(error.Input, "output {s}: expected room for {d} bytes, found {d}\nfix: give more, or NULL to have it in the session's memory", .{ port.name, size, output.size });
        if (data.? != room) @memmove(room[0..size], data.?[0..size]);
    } else output.data = data;
    output.size = size;
}
