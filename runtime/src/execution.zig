//! Runs the blocks of a program with control flow: calls regions, branches, loops, and cuts and joins values by sizes that
//! data decides.
const std = @import("std");
const abi = @import("abi.zig");
const b = @import("blocks.zig");
const expression = @import("expression.zig");
const frame_of = @import("frame.zig");
const lists = @import("lists.zig");
const memory = @import("buffers.zig");
const message = @import("message.zig");
const p = @import("program.zig");
const values_of = @import("values.zig");
const Error = message.Error;
const Tensor = values_of.Tensor;
const Value = values_of.Value;
const refused = values_of.refused;

const largest = 1 << 40;
const int64: abi.Dtype = .{ .code = 0, .bits = 64, .lanes = 1 };
const boolean: abi.Dtype = .{ .code = 6, .bits = 8, .lanes = 1 };

/// What a loop has between two turns.
const Loop = struct { condition: Value = .none, carried: []Value = &.{}, stacks: []Stack = &.{} };

/// Shares of the turns so far, one after the other.
const Stack = struct {
    buffer: ?*memory.Buffer = null,
    /// The first share: the others have its dtype and shape.
    share: Tensor = undefined,
    count: usize = 0,

    fn add(stack: *Stack, supply: *memory.Buffers, share: *const Tensor) Error!void {
        if (stack.count == 0) {
            stack.share = .of(share.dtype, share.extents());
        } else if (!share.dtype.equals(stack.share.dtype) or !std.mem.eql(i64, share.extents(), stack.share.extents())) {
            return refused("a loop whose turns give arrays of one shape", "others", .{});
        }
        const data = share.bytes();
        const used = stack.count * data.len;
        if (stack.buffer == null or stack.buffer.?.memory.len < used + data.len) {
            const larger = try supply.take(2 * used + data.len);
            if (stack.buffer) |buffer| {
                @memcpy(larger.memory[0..used], buffer.memory[0..used]);
                supply.give(buffer);
            }
            stack.buffer = larger;
        }
        @memcpy(stack.buffer.?.memory[used..][0..data.len], data);
        stack.count += 1;
    }

    fn take(stack: *Stack, supply: *memory.Buffers, empty: b.Stacked) Error!Tensor {
        const dtype, const share = if (stack.count == 0) .{ empty.dtype, empty.shape } else .{ stack.share.dtype, stack.share.extents() };
        if (share.len == abi.max_rank) return refused("arrays of at most {d} axes", "a loop that stacks one of {d}", .{ abi.max_rank, share.len });
        var shape: [abi.max_rank]i64 = undefined;
        shape[0] = @intCast(stack.count);
        @memcpy(shape[1..][0..share.len], share);
        if (stack.count == 0) return values_of.make(supply, dtype, shape[0 .. 1 + share.len]);
        var found: Tensor = .of(dtype, shape[0 .. 1 + share.len]);
        found.owner = stack.buffer;
        found.data = stack.buffer.?.memory.ptr;
        stack.* = .{};
        return found;
    }

    fn drop(stack: *Stack, supply: *memory.Buffers) void {
        if (stack.buffer) |buffer| supply.give(buffer);
        stack.* = .{};
    }
};

pub const Execution = struct {
    program: *const p.Program,
    /// By the number of the function: those of regions.
    frames: []const ?*frame_of.Frame,
    supply: *memory.Buffers,
    is_cancelled: *const std.atomic.Value(bool),
    values: []Value,
    /// By the number of the block that is the body.
    loops: []Loop,
    /// Extents that the demands of a region name.
    extents: []i64,
    is_profiling: bool = false,

    pub fn init(arena: std.mem.Allocator, program: *const p.Program, frames: []const ?*frame_of.Frame, supply: *memory.Buffers, is_cancelled: *const std.atomic.Value(bool)) error{OutOfMemory}!Execution {
        const values = try arena.alloc(Value, program.values);
        @memset(values, .none);
        const loops = try arena.alloc(Loop, program.blocks.len);
        @memset(loops, .{});
        for (program.blocks) |block_of| for (block_of.steps) |*one| switch (one.action) {
            .loop => |s| {
                const state = &loops[s.body];
                state.carried = try arena.alloc(Value, s.inputs.len);
                @memset(state.carried, .none);
                state.stacks = try arena.alloc(Stack, s.stacked.len);
                @memset(state.stacks, .{});
            },
            else => {},
        };
        var most: usize = 0;
        for (program.functions) |function| most = @max(most, function.region.extents.len);
        return .{ .program = program, .frames = frames, .supply = supply, .is_cancelled = is_cancelled, .values = values, .loops = loops, .extents = try arena.alloc(i64, most) };
    }

    /// Run the model on its inputs. Its outputs are there until the next run.
    pub fn run(x: *Execution, inputs: []const Tensor) Error!void {
        x.clear();
        for (x.program.blocks[0].inputs, inputs) |number, input| x.values[@intCast(number)] = .{ .tensor = input };
        try x.block(0);
    }

    /// The value of an output.
    pub fn output(x: *const Execution, index: usize) *const Tensor {
        return x.tensor(x.program.blocks[0].outputs[index]);
    }

    /// Give up all values; those of a run that failed lie anywhere.
    fn clear(x: *Execution) void {
        for (x.values) |*value| value.drop(x.supply);
        for (x.loops) |*state| {
            state.condition.drop(x.supply);
            for (state.carried) |*value| value.drop(x.supply);
            for (state.stacks) |*stack| stack.drop(x.supply);
        }
    }

    fn tensor(x: *const Execution, number: i64) *const Tensor {
        return &x.values[@intCast(number)].tensor;
    }

    fn held(x: *const Execution, number: i64) Value {
        return x.values[@intCast(number)].hold();
    }

    fn set(x: *Execution, number: i64, value: Value) void {
        x.values[@intCast(number)] = value;
    }

    fn block(x: *Execution, number: usize) Error!void {
        for (x.program.blocks[number].steps) |*one| {
            try x.step(one);
            for (one.unused) |value| x.values[value].drop(x.supply);
        }
    }

    /// Give up the values that a block leaves: its outputs are held by who ran it.
    fn leave(x: *Execution, number: usize) void {
        for (x.program.blocks[number].left) |value| x.values[value].drop(x.supply);
    }

    fn step(x: *Execution, one: *const b.Step) Error!void {
        switch (one.action) {
            .call => |*s| try x.call(s),
            .extents => |s| try x.readExtents(s),
            .prefix => |s| try x.prefix(s),
            .branch => |*s| try x.branch(s),
            .loop => |*s| try x.loop(s),
            .list => |s| {
                const list = try values_of.makeList(x.supply, s.inputs.len);
                for (s.inputs, list.items()) |number, *item| item.* = x.tensor(number).hold();
                x.set(s.output, .{ .list = list });
            },
            .insert => |s| {
                const at = try x.place(s.position, x.values[@intCast(s.list)].list.count + 1);
                x.set(s.output, .{ .list = try lists.insert(x.supply, x.takenList(s.list, one), at, x.tensor(s.input)) });
            },
            .erase => |s| {
                const at = try x.place(s.position, x.values[@intCast(s.list)].list.count);
                x.set(s.output, .{ .list = try lists.erase(x.supply, x.takenList(s.list, one), at) });
            },
            .pick => |s| {
                const list = x.values[@intCast(s.list)].list;
                x.set(s.output, .{ .tensor = list.items()[try x.place(s.position, list.count)].hold() });
            },
            .length => |s| x.set(s.output, try x.counted(x.values[@intCast(s.list)].list.count)),
            .split => |s| {
                const sizes = if (s.sizes == b.none) null else x.tensor(s.sizes);
                x.set(s.output, .{ .list = try lists.split(x.supply, x.tensor(s.input), sizes, s.axis, s.drops_axis) });
            },
            .join => |s| x.set(s.output, .{ .tensor = try lists.join(x.supply, x.values[@intCast(s.list)].list, s.axis, s.is_new) }),
        }
    }

    fn call(x: *Execution, s: *const b.Call) Error!void {
        const frame = x.frames[s.function].?;
        const region = &frame.function.region;
        for (s.inputs, 0..) |number, index| try frame.give(index, x.tensor(number));
        for (region.extents, x.extents[0..region.extents.len]) |from, *extent| extent.* = x.tensor(s.inputs[from.input]).shape[from.axis];
        for (region.constraints) |constraint| if (!constraint.holds(x.extents)) return refused("sizes that go together ({s})", "others", .{constraint.text});
        defer frame.release();
        try frame.run(x.is_cancelled, x.is_profiling);
        for (s.outputs, frame.function.results()) |number, index| x.set(number, .{ .tensor = frame.resultOf(index) });
    }

    fn branch(x: *Execution, s: *const b.Branch) Error!void {
        const taken = if (try x.numberIn(s.condition) != 0) s.then else s.otherwise;
        try x.block(taken);
        for (s.outputs, x.program.blocks[taken].outputs) |to, from| x.set(to, x.held(from));
        x.leave(taken);
    }

    fn loop(x: *Execution, s: *const b.Loop) Error!void {
        const state = &x.loops[s.body];
        const body = &x.program.blocks[s.body];
        const most = if (s.count == b.none) std.math.maxInt(i64) else try x.numberIn(s.count);
        state.condition = if (s.condition == b.none) try x.scalar(boolean, &.{1}) else x.held(s.condition);
        for (s.inputs, state.carried) |from, *to| to.* = x.held(from);
        var turn: usize = 0;
        while (turn < most and try oneWhole(&state.condition.tensor) != 0) : (turn += 1) {
            if (x.is_cancelled.load(.monotonic)) return message.fail(error.Cancelled, "run: expected to end, found that it was cancelled\nfix: call again", .{});
            x.set(body.inputs[0], try x.counted(turn));
            x.set(body.inputs[1], state.condition);
            state.condition = .none;
            for (body.inputs[2..], state.carried) |to, *from| {
                x.set(to, from.*);
                from.* = .none;
            }
            try x.block(s.body);
            state.condition = x.held(body.outputs[0]);
            for (body.outputs[1..][0..state.carried.len], state.carried) |from, *to| to.* = x.held(from);
            for (body.outputs[1 + state.carried.len ..], state.stacks) |from, *stack| try stack.add(x.supply, x.tensor(from));
            x.leave(s.body);
        }
        state.condition.drop(x.supply);
        for (s.outputs[0..state.carried.len], state.carried) |to, *from| {
            x.set(to, from.*);
            from.* = .none;
        }
        for (s.outputs[state.carried.len..], state.stacks, s.stacked) |to, *stack, empty| x.set(to, .{ .tensor = try stack.take(x.supply, empty) });
    }

    fn readExtents(x: *Execution, s: b.Extents) Error!void {
        const sizes = x.tensor(s.input);
        const rank = sizes.count();
        if (rank > abi.max_rank) return refused("arrays of at most {d} axes", "sizes of {d}", .{ abi.max_rank, rank });
        var shape: [abi.max_rank]i64 = undefined;
        for (shape[0..rank], 0..) |*extent, index| {
            extent.* = try sizes.whole(index);
            if (extent.* < 0 or extent.* >= largest) return refused("sizes, computed from the data, of which none is negative", "{d}", .{extent.*});
        }
        x.set(s.output, .{ .tensor = .of(.{ .code = 1, .bits = 8, .lanes = 1 }, shape[0..rank]) });
    }

    fn prefix(x: *Execution, s: b.Prefix) Error!void {
        const whole = x.tensor(s.input);
        const asked = x.tensor(s.extents);
        if (whole.rank == 0 or asked.rank == 0 or asked.shape[0] > whole.shape[0]) return refused("a count of what is there at most", "a larger one", .{});
        var found = whole.hold();
        found.shape[0] = asked.shape[0];
        x.set(s.output, .{ .tensor = found });
    }

    /// The list, held by the caller: taken from its value where that is needed no more.
    fn takenList(x: *Execution, number_of: i64, one: *const b.Step) values_of.List {
        const value = &x.values[@intCast(number_of)];
        if (std.mem.indexOfScalar(u32, one.unused, @intCast(number_of)) == null) return value.hold().list;
        defer value.* = .none;
        return value.list;
    }

    /// One of `count` places; the last where no value says which.
    fn place(x: *const Execution, position: i64, count: usize) Error!usize {
        return lists.place(if (position == b.none) -1 else try x.numberIn(position), count);
    }

    fn numberIn(x: *const Execution, value: i64) Error!i64 {
        return oneWhole(x.tensor(value));
    }

    fn counted(x: *const Execution, count: usize) Error!Value {
        return x.scalar(int64, &std.mem.toBytes(@as(i64, @intCast(count))));
    }

    fn scalar(x: *const Execution, dtype: abi.Dtype, bytes: []const u8) Error!Value {
        const made = try values_of.make(x.supply, dtype, &.{});
        @memcpy(made.bytes(), bytes);
        return .{ .tensor = made };
    }
};

/// The only number, or flag, of a tensor.
fn oneWhole(value: *const Tensor) Error!i64 {
    if (value.count() != 1) return refused("one number", "an array of {d}", .{value.count()});
    return value.whole(0);
}
