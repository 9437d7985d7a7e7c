//! The program of a library (docs/format.md, "Program"), read from its words. `check.zig` checks what its functions do.
const std = @import("std");
const abi = @import("abi.zig");
const blocks = @import("blocks.zig");
const expression = @import("expression.zig");
const message = @import("message.zig");
const Error = message.Error;

pub const Port = extern struct { name: [*:0]const u8, dtype: abi.Dtype, rank: i32, shape: [abi.max_rank]i64 };
pub const Weight = struct { offset: u64, size: u64 };
pub const Constraint = struct {
    not_negative: bool,
    text: [:0]const u8,
    expression: []const i64,

    pub fn holds(constraint: *const Constraint, extents: []const i64) bool {
        const found = expression.value(constraint.expression, extents) orelse return false;
        return if (constraint.not_negative) found >= 0 else found == 0;
    }
};
pub const Fixed = struct { extent: usize, size: i64 };
pub const Role = enum(i64) { main = 0, entry = 1, prepare = 2, region = 3 };
pub const Kind = enum(i64) { input = 0, weight = 1, prepared = 2, constant = 3, scratch = 4, kept = 5, dynamic = 6, shape = 7 };
pub const Code = enum(i64) { call = 1, match = 2, storage = 3, tensor = 4, view = 5, done = 6, compute = 7, state = 8 };

pub const Row = struct {
    dtype: abi.Dtype,
    kind: Kind,
    where: u64,
    shape: []const i64,

    /// Bytes, where all extents are numbers.
    pub fn size(row: Row) ?u64 {
        return bytes(row.dtype, row.shape);
    }
};

pub const Operation = struct { code: Code, words: []const i64 };

/// What a session keeps: an input that is an output of the call before. One that grows has at most `most` entries along
/// its first axis; one of 0 has the same shape always.
pub const State = struct {
    input: Port,
    output: Port,
    most: usize,

    /// Bytes of all that is kept, where a session can have so much.
    pub fn size(state: *const State) ?u64 {
        var shape = state.input.shape;
        if (state.most != 0) shape[0] = @intCast(state.most);
        return bytes(state.input.dtype, shape[0..@intCast(state.input.rank)]);
    }
};

/// An axis of an input.
pub const Axis = struct { input: usize, axis: usize };

/// What a region takes: how many inputs, and what their sizes must keep, in expressions over these axes.
pub const Region = struct { inputs: usize = 0, extents: []const Axis = &.{}, constraints: []const Constraint = &.{} };

pub const Function = struct {
    role: Role,
    fixed: []const Fixed,
    region: Region,
    heap: usize,
    scratch: usize,
    kept: usize,
    buffers: usize,
    rows: []const Row,
    operations: []const Operation,

    pub fn results(function: *const Function) []const i64 {
        return function.operations[function.operations.len - 1].words[1..];
    }

    pub fn suits(function: *const Function, extents: []const i64) bool {
        for (function.fixed) |fixed| if (extents[fixed.extent] != fixed.size) return false;
        return true;
    }
};

pub const Program = struct {
    kernels: []const [:0]const u8,
    weights: []const Weight,
    extents: []const [:0]const u8,
    inputs: []const Port,
    outputs: []const Port,
    triple: [:0]const u8,
    cpu_flags: []const [:0]const u8,
    constraints: []const Constraint,
    functions: []const Function,
    /// How many values the blocks work on, and the blocks, the first of which is the model; none of a model that is one
    /// function.
    values: usize,
    blocks: []blocks.Block,
    /// Their inputs and outputs come behind those of callers.
    states: []const State = &.{},
    /// The extent by which states grow.
    length: ?usize = null,
    constants: []const u8,
    words: usize,

    /// How many inputs a function has.
    pub fn inputsOf(program: *const Program, function: *const Function) usize {
        return switch (function.role) {
            .main, .entry => program.inputs.len + program.states.len,
            .region => function.region.inputs,
            .prepare => 0,
        };
    }
};

/// Bytes of an array; null where an extent is negative, or all of it more than there can be.
pub fn bytes(dtype: abi.Dtype, shape: []const i64) ?u64 {
    var total: u64 = dtype.width();
    for (shape) |extent| {
        if (extent < 0) return null;
        total = std.math.mul(u64, total, @intCast(extent)) catch return null;
    }
    return if (total > 1 << 46) null else total;
}

const damage: message.Frame = .{ .head = "program of the library: expected a table as docs/format.md describes it, found ", .tail = "\nfix: build the library anew" };

/// A table that no build makes.
pub fn damaged(comptime what: [:0]const u8, arguments: anytype) Error {
    if (arguments.len == 0) return plainly(what);
    return message.failIn(error.Damaged, &damage, what, arguments);
}

/// There are some hundred of these, each of which is a call with one argument.
noinline fn plainly(what: [*:0]const u8) Error {
    @branchHint(.cold);
    return message.failIn(error.Damaged, &damage, "{s}", .{what});
}

pub const Reader = struct {
    arena: std.mem.Allocator,
    words: []const i64,
    texts: []const u8,
    at: usize = 0,

    pub fn word(r: *Reader) Error!i64 {
        if (r.at == r.words.len) return damaged("one that is cut off", .{});
        r.at += 1;
        return r.words[r.at - 1];
    }

    /// A whole number from 0 to `limit`.
    pub fn number(r: *Reader, limit: usize) Error!usize {
        const value = try r.word();
        if (value < 0 or value > limit) return damaged("{d} at word {d}, where at most {d} can be", .{ value, r.at - 1, limit });
        return @intCast(value);
    }

    /// How many rows follow: each takes a word at least.
    pub fn count(r: *Reader) Error!usize {
        return r.number(r.words.len - r.at);
    }

    pub fn take(r: *Reader, size: usize) Error![]const i64 {
        if (size > r.words.len - r.at) return damaged("one that is cut off", .{});
        r.at += size;
        return r.words[r.at - size .. r.at];
    }

    fn text(r: *Reader) Error![:0]const u8 {
        if (r.texts.len == 0) return damaged("no texts", .{});
        const start = try r.number(r.texts.len - 1);
        return std.mem.sliceTo(r.texts[start .. r.texts.len - 1 :0], 0);
    }

    pub fn dtype(r: *Reader) Error!abi.Dtype {
        const value = try r.word();
        const found: abi.Dtype = .{ .code = @truncate(@as(u64, @bitCast(value))), .bits = @truncate(@as(u64, @bitCast(value)) >> 8), .lanes = 1 };
        const is_known = switch (found.code) {
            0, 1 => found.bits == 8 or found.bits == 16 or found.bits == 32 or found.bits == 64,
            2 => found.bits == 16 or found.bits == 32 or found.bits == 64,
            4 => found.bits == 16,
            6 => found.bits == 8,
            else => false,
        };
        if (!is_known or value >> 16 != 1) return damaged("dtype {x}", .{value});
        return found;
    }

    pub fn rows(r: *Reader, comptime T: type, comptime one: fn (*Reader) Error!T) Error![]const T {
        const list = try r.make(T, try r.count());
        for (list) |*item| item.* = try one(r);
        return list;
    }

    pub fn make(r: *Reader, comptime T: type, size: usize) Error![]T {
        return r.arena.alloc(T, size) catch message.fail(error.Memory, "memory: expected room for the program's tables, found none\nfix: free memory", .{});
    }

    fn weight(r: *Reader) Error!Weight {
        return .{ .offset = try r.number(1 << 46), .size = try r.number(1 << 46) };
    }

    fn port(r: *Reader) Error!Port {
        var p: Port = .{ .name = try r.text(), .dtype = try r.dtype(), .rank = @intCast(try r.number(abi.max_rank)), .shape = @splat(0) };
        for (p.shape[0..@intCast(p.rank)]) |*extent| extent.* = try r.word();
        return p;
    }

    fn constraint(r: *Reader) Error!Constraint {
        const kind = try r.number(1);
        const said = try r.text();
        return .{ .not_negative = kind == 1, .text = said, .expression = try r.take(try r.count()) };
    }

    fn fixed(r: *Reader) Error!Fixed {
        return .{ .extent = try r.number(r.words.len), .size = @intCast(try r.number(1 << 40)) };
    }

    fn row(r: *Reader) Error!Row {
        const kind = try r.dtype();
        const rank = try r.number(abi.max_rank);
        const place: Kind = @fromBackingInt(@as(i64, @intCast(try r.number(7))));
        return .{ .dtype = kind, .kind = place, .where = try r.number(1 << 46), .shape = try r.take(rank) };
    }

    fn axis(r: *Reader) Error!Axis {
        return .{ .input = try r.number(r.words.len), .axis = try r.number(abi.max_rank - 1) };
    }

    fn region(r: *Reader) Error!Region {
        return .{ .inputs = try r.number(r.words.len), .extents = try r.rows(Axis, axis), .constraints = try r.rows(Constraint, constraint) };
    }

    fn function(r: *Reader) Error!Function {
        const role: Role = @fromBackingInt(@as(i64, @intCast(try r.number(3))));
        const taken: Region = if (role == .region) try r.region() else .{};
        const fixes: []const Fixed = if (role == .region) &.{} else try r.rows(Fixed, fixed);
        const heap = try r.number(1 << 20);
        const scratch = try r.number(1 << 46);
        const kept = try r.number(1 << 46);
        const buffers = try r.number(1 << 20);
        const tensors = try r.rows(Row, row);
        const words = try r.take(try r.count());
        return .{ .role = role, .fixed = fixes, .region = taken, .heap = heap, .scratch = scratch, .kept = kept, .buffers = buffers, .rows = tensors, .operations = try r.operations(words) };
    }

    fn operations(r: *Reader, words: []const i64) Error![]const Operation {
        var total: usize = 0;
        var at: usize = 0;
        while (at < words.len) : (total += 1) {
            if (words.len - at < 2 or words[at + 1] < 0 or words[at + 1] > words.len - at - 2) return damaged("an operation that is cut off", .{});
            if (words[at] < 1 or words[at] > 8) return damaged("operation {d}", .{words[at]});
            at += 2 + @as(usize, @intCast(words[at + 1]));
        }
        const list = try r.make(Operation, total);
        at = 0;
        for (list) |*operation| {
            const size: usize = @intCast(words[at + 1]);
            operation.* = .{ .code = @fromBackingInt(words[at]), .words = words[at + 2 ..][0..size] };
            at += 2 + size;
        }
        return list;
    }
};

/// Read the tables of `blob`, which must stay. Its code is not to be run before `check.all`.
pub fn read(arena: std.mem.Allocator, blob: []align(8) const u8) Error!Program {
    if (blob.len < 64) return damaged("{d} bytes", .{blob.len});
    const head = std.mem.bytesAsSlice(i64, blob[0..64]);
    if (!std.mem.eql(u8, blob[0..8], "FORGEPRG") or (head[1] != 2 and head[1] != 3) or head[2] != blob.len or head[6] != 0 or head[7] != 0)
        return damaged("another version, or a length that is not its own", .{});
    const count = head[3];
    if (count < 0 or count > (blob.len - 64) / 8 or head[4] != 64 + 8 * count) return damaged("texts elsewhere", .{});
    if (head[5] < head[4] or head[5] > blob.len or @mod(head[5], abi.alignment) != 0) return damaged("constants elsewhere", .{});
    const texts: usize = @intCast(head[4]);
    const constants: usize = @intCast(head[5]);
    if (constants > texts and blob[constants - 1] != 0) return damaged("a text without an end", .{});
    const words: []const i64 = @alignCast(std.mem.bytesAsSlice(i64, blob[64..texts]));
    var r: Reader = .{ .arena = arena, .words = words, .texts = blob[texts..constants] };
    var program: Program = .{
        .kernels = try r.rows([:0]const u8, Reader.text),
        .weights = try r.rows(Weight, Reader.weight),
        .extents = try r.rows([:0]const u8, Reader.text),
        .inputs = try r.rows(Port, Reader.port),
        .outputs = try r.rows(Port, Reader.port),
        .triple = try r.text(),
        .cpu_flags = try r.rows([:0]const u8, Reader.text),
        .constraints = try r.rows(Constraint, Reader.constraint),
        .functions = try r.rows(Function, Reader.function),
        .values = try r.number(words.len),
        .blocks = try blocks.read(&r),
        .constants = blob[constants..],
        .words = words.len,
    };
    if (head[1] == 3) try readStates(&r, &program);
    if (r.at != words.len) return damaged("{d} words too many", .{words.len - r.at});
    try checkPorts(&program, program.inputs);
    try checkPorts(&program, program.outputs);
    for (program.constraints) |item| try expression.check(item.expression, program.extents.len);
    for (program.functions) |function| for (function.region.constraints) |item| try expression.check(item.expression, function.region.extents.len);
    return program;
}

/// Take the last inputs and outputs, which are states. Those that grow do so by one extent.
fn readStates(r: *Reader, program: *Program) Error!void {
    const inputs = program.inputs;
    const count = try r.number(@min(inputs.len, program.outputs.len));
    if (program.blocks.len != 0) return damaged("states of a model with blocks", .{});
    const list = try r.make(State, count);
    program.inputs = inputs[0 .. inputs.len - count];
    const outputs = program.outputs;
    program.outputs = outputs[0 .. outputs.len - count];
    for (list, inputs[program.inputs.len..], outputs[program.outputs.len..]) |*state, input, output| {
        state.* = .{ .input = input, .output = output, .most = try r.number(1 << 40) };
        const grows = state.most != 0;
        if (input.rank != output.rank or !input.dtype.equals(output.dtype) or input.rank < @intFromBool(grows)) return damaged("a state that changes its kind", .{});
        if (grows and (input.shape[0] >= 0 or ~input.shape[0] >= program.extents.len)) return damaged("a state that cannot grow", .{});
        if (grows) {
            if (program.length) |extent| if (extent != ~input.shape[0]) return damaged("states that grow by two sizes", .{});
            program.length = @intCast(~input.shape[0]);
        }
        _ = state.size() orelse return damaged("a state of a size that nobody knows", .{});
    }
    program.states = list;
}

fn checkPorts(program: *const Program, ports: []const Port) Error!void {
    for (ports) |p| for (p.shape[0..@intCast(p.rank)]) |extent| {
        if (extent < 0 and ~extent >= program.extents.len) return damaged("extent {d} of {d}", .{ ~extent, program.extents.len });
        if (extent > 1 << 40) return damaged("an array of {d} rows", .{extent});
    };
}
