//! The blocks of a program with control flow (docs/format.md, "Blocks"), read from its words, and checked: values are
//! defined before they are used, once, and used as what they are.
const std = @import("std");
const abi = @import("abi.zig");
const message = @import("message.zig");
const p = @import("program.zig");
const Error = message.Error;
const Reader = p.Reader;
const damaged = p.damaged;

const deepest = 32;
const most_steps = 100_000;
const most_axes = 64;
/// The number of a value that is left out.
pub const none = -1;

pub const Stacked = struct { dtype: abi.Dtype, shape: []const i64 };
pub const Call = struct { function: usize, inputs: []const i64, outputs: []const i64 };
pub const Extents = struct { input: i64, output: i64 };
pub const Prefix = struct { input: i64, extents: i64, output: i64 };
pub const Branch = struct { condition: i64, then: usize, otherwise: usize, outputs: []const i64 };
pub const Loop = struct { count: i64, condition: i64, body: usize, inputs: []const i64, stacked: []const Stacked, outputs: []const i64 };
pub const MakeList = struct { inputs: []const i64, output: i64 };
pub const Insert = struct { list: i64, input: i64, position: i64, output: i64 };
pub const Erase = struct { list: i64, position: i64, output: i64 };
pub const Pick = struct { list: i64, position: i64, output: i64 };
pub const Length = struct { list: i64, output: i64 };
pub const Split = struct { input: i64, sizes: i64, axis: i64, drops_axis: bool, output: i64 };
pub const Join = struct { list: i64, axis: i64, is_new: bool, output: i64 };

/// In the order of the numbers that the format has for them, from 1.
pub const Action = union(enum) {
    call: Call,
    extents: Extents,
    prefix: Prefix,
    branch: Branch,
    loop: Loop,
    list: MakeList,
    insert: Insert,
    erase: Erase,
    pick: Pick,
    length: Length,
    split: Split,
    join: Join,
};

/// `unused`: the values of its block that are needed no more after it.
pub const Step = struct { action: Action, unused: []const u32 = &.{} };
/// `left`: the values of its own that are there when its steps are done.
pub const Block = struct { inputs: []const i64, outputs: []const i64, steps: []Step, left: []const u32 = &.{} };

// ---- reading ----

pub fn read(r: *Reader) Error![]Block {
    const list = try r.make(Block, try r.count());
    for (list) |*item| {
        item.* = .{ .inputs = try numbers(r), .outputs = try numbers(r), .steps = try r.make(Step, try r.count()) };
        for (item.steps) |*one| one.* = .{ .action = try action(r) };
    }
    return list;
}

fn numbers(r: *Reader) Error![]const i64 {
    return r.take(try r.count());
}

fn action(r: *Reader) Error!Action {
    const kinds = @typeInfo(Action).@"union";
    const code = try r.number(kinds.field_names.len);
    inline for (kinds.field_names, kinds.field_types, 1..) |name, T, number| {
        if (code == number) return @unionInit(Action, name, try fields(r, T));
    }
    return damaged("step {d}", .{code});
}

/// Read what a step has, in the order in which it is declared.
fn fields(r: *Reader, comptime T: type) Error!T {
    var found: T = undefined;
    inline for (@typeInfo(T).@"struct".field_names, @typeInfo(T).@"struct".field_types) |name, Field| {
        @field(found, name) = switch (Field) {
            i64 => try r.word(),
            usize => try r.number(r.words.len),
            bool => try r.number(1) == 1,
            []const i64 => try numbers(r),
            []const Stacked => try r.rows(Stacked, stacked),
            else => comptime unreachable,
        };
    }
    return found;
}

fn stacked(r: *Reader) Error!Stacked {
    const dtype = try r.dtype();
    return .{ .dtype = dtype, .shape = try r.take(try r.number(abi.max_rank - 1)) };
}

// ---- checking ----

/// `shape`: a tensor without contents.
const Kind = enum { none, tensor, shape, list };
const Bits = std.bit_set.DynamicBitSetUnmanaged;

/// Check the blocks, and note which values are needed no more after each step. The program's own memory is `arena`;
/// `room` is needed no more afterwards.
pub fn check(arena: std.mem.Allocator, room: std.mem.Allocator, program: *const p.Program) Error!void {
    if (program.blocks.len == 0) return if (program.values != 0) damaged("values without blocks", .{}) else {};
    var checker: Checker = .{ .program = program, .arena = arena, .room = room };
    checker.run() catch |failure| switch (failure) {
        error.OutOfMemory => return message.fail(error.Memory, "memory: expected room to check the program, found none\nfix: free memory", .{}),
        else => |known| return known,
    };
}

const Failure = Error || error{OutOfMemory};

const nobody = std.math.maxInt(usize);

const Checker = struct {
    program: *const p.Program,
    arena: std.mem.Allocator,
    room: std.mem.Allocator,
    kinds: []Kind = &.{},
    /// The block that defines each value, if any does.
    owners: []usize = &.{},
    /// Values that their block gives, or that a later step of it uses; those of the second kind.
    later: Bits = .{},
    noted: Bits = .{},
    entered: Bits = .{},
    defined: std.ArrayList(u32) = .empty,
    steps: usize = 0,
    /// The block that is looked at.
    current: usize = 0,

    fn run(c: *Checker) Failure!void {
        const program = c.program;
        c.kinds = try c.room.alloc(Kind, program.values);
        @memset(c.kinds, .none);
        c.owners = try c.room.alloc(usize, program.values);
        @memset(c.owners, nobody);
        c.noted = try Bits.initEmpty(c.room, program.values);
        c.later = try Bits.initEmpty(c.room, program.values);
        c.entered = try Bits.initEmpty(c.room, program.blocks.len);
        const given = try c.room.alloc(Kind, program.inputs.len);
        @memset(given, .tensor);
        const found = try c.block(0, given, 0);
        if (found.len != program.outputs.len) return damaged("{d} results for {d} outputs", .{ found.len, program.outputs.len });
        for (found) |kind| if (kind != .tensor) return damaged("an output that is no tensor", .{});
        if (c.entered.count() != program.blocks.len) return damaged("a block that nothing leads to", .{});
    }

    /// Check a block whose inputs are of these kinds; return those of its outputs. What it defines ends with it.
    fn block(c: *Checker, number: usize, given: []const Kind, depth: usize) Failure![]const Kind {
        if (number >= c.program.blocks.len or c.entered.isSet(number)) return damaged("block {d}, which is none or is there twice", .{number});
        if (depth > deepest) return damaged("blocks more than {d} deep", .{deepest});
        c.entered.set(number);
        const found = &c.program.blocks[number];
        const start = c.defined.items.len;
        const outer = c.current;
        c.current = number;
        defer c.current = outer;
        if (found.inputs.len != given.len) return damaged("{d} inputs of a block that is given {d}", .{ found.inputs.len, given.len });
        for (found.inputs, given) |value, kind| try c.define(value, kind);
        for (found.steps) |*one| {
            c.steps += 1;
            if (c.steps > most_steps) return damaged("more than {d} steps", .{most_steps});
            try c.step(&one.action, depth);
        }
        const kinds = try c.room.alloc(Kind, found.outputs.len);
        for (found.outputs, kinds) |value, *kind| kind.* = try c.kindOf(value);
        try c.note(found, c.defined.items[start..]);
        for (c.defined.items[start..]) |value| c.kinds[value] = .none;
        c.defined.shrinkRetainingCapacity(start);
        return kinds;
    }

    fn define(c: *Checker, value: i64, kind: Kind) Failure!void {
        if (value < 0 or value >= c.kinds.len or c.owners[@intCast(value)] != nobody) return damaged("value {d}, which is none or is defined twice", .{value});
        c.owners[@intCast(value)] = c.current;
        c.kinds[@intCast(value)] = kind;
        try c.defined.append(c.room, @intCast(value));
    }

    fn defineAll(c: *Checker, values: []const i64, kinds: []const Kind) Failure!void {
        if (values.len != kinds.len) return damaged("{d} outputs of {d}", .{ values.len, kinds.len });
        for (values, kinds) |value, kind| try c.define(value, kind);
    }

    fn kindOf(c: *Checker, value: i64) Error!Kind {
        if (value < 0 or value >= c.kinds.len or c.kinds[@intCast(value)] == .none) return damaged("value {d}, which is not defined where it is used", .{value});
        return c.kinds[@intCast(value)];
    }

    fn use(c: *Checker, kind: Kind, value: i64) Error!void {
        if (try c.kindOf(value) != kind) return damaged("value {d}, which is no {s}", .{ value, @tagName(kind) });
    }

    fn useMaybe(c: *Checker, value: i64) Error!void {
        if (value != none) try c.use(.tensor, value);
    }

    fn step(c: *Checker, found: *const Action, depth: usize) Failure!void {
        switch (found.*) {
            .call => |*s| try c.call(s),
            .extents => |s| {
                try c.use(.tensor, s.input);
                try c.define(s.output, .shape);
            },
            .prefix => |s| {
                try c.use(.tensor, s.input);
                try c.use(.shape, s.extents);
                try c.define(s.output, .tensor);
            },
            .branch => |s| {
                try c.use(.tensor, s.condition);
                const kinds = try c.block(s.then, &.{}, depth + 1);
                if (!std.mem.eql(Kind, kinds, try c.block(s.otherwise, &.{}, depth + 1))) return damaged("a branch whose two sides give different things", .{});
                try c.defineAll(s.outputs, kinds);
            },
            .loop => |*s| try c.loop(s, depth),
            .list => |s| {
                for (s.inputs) |value| try c.use(.tensor, value);
                try c.define(s.output, .list);
            },
            .insert => |s| {
                try c.use(.list, s.list);
                try c.use(.tensor, s.input);
                try c.useMaybe(s.position);
                try c.define(s.output, .list);
            },
            .erase => |s| {
                try c.use(.list, s.list);
                try c.useMaybe(s.position);
                try c.define(s.output, .list);
            },
            .pick => |s| {
                try c.use(.list, s.list);
                try c.use(.tensor, s.position);
                try c.define(s.output, .tensor);
            },
            .length => |s| {
                try c.use(.list, s.list);
                try c.define(s.output, .tensor);
            },
            .split => |s| {
                try c.use(.tensor, s.input);
                try c.useMaybe(s.sizes);
                if (s.axis < -most_axes or s.axis > most_axes) return damaged("axis {d}", .{s.axis});
                try c.define(s.output, .list);
            },
            .join => |s| {
                try c.use(.list, s.list);
                if (s.axis < -most_axes or s.axis > most_axes) return damaged("axis {d}", .{s.axis});
                try c.define(s.output, .tensor);
            },
        }
    }

    fn call(c: *Checker, s: *const Call) Failure!void {
        if (s.function >= c.program.functions.len) return damaged("function {d} of {d}", .{ s.function, c.program.functions.len });
        const function = &c.program.functions[s.function];
        if (function.role != .region or s.inputs.len != function.region.inputs or s.outputs.len != function.results().len) return damaged("a call of something else than a region, or with other inputs or outputs", .{});
        for (s.inputs, function.rows[0..s.inputs.len]) |value, row| try c.use(if (row.kind == .shape) .shape else .tensor, value);
        for (s.outputs) |value| try c.define(value, .tensor);
    }

    fn loop(c: *Checker, s: *const Loop, depth: usize) Failure!void {
        try c.useMaybe(s.count);
        try c.useMaybe(s.condition);
        const kinds = try c.room.alloc(Kind, 2 + s.inputs.len + s.stacked.len);
        @memset(kinds, .tensor);
        const carried = kinds[2..][0..s.inputs.len];
        for (s.inputs, carried) |value, *kind| kind.* = try c.kindOf(value);
        for (s.stacked) |share| for (share.shape) |extent| if (extent < 0 or extent > 1 << 40) return damaged("a stack of arrays of {d} rows", .{extent});
        const found = try c.block(s.body, kinds[0 .. 2 + carried.len], depth + 1);
        if (!std.mem.eql(Kind, found, kinds[1..])) return damaged("a loop whose block does not give what it takes", .{});
        try c.defineAll(s.outputs, kinds[2..]);
    }

    /// Note the last uses of a block's own values: after which step, or after all of them.
    fn note(c: *Checker, found: *Block, own: []const u32) Failure!void {
        for (found.outputs) |value| c.later.set(@intCast(value));
        var at = found.steps.len;
        while (at > 0) {
            at -= 1;
            var unused: std.ArrayList(u32) = .empty;
            try c.touch(&found.steps[at].action, &unused);
            found.steps[at].unused = unused.items;
        }
        var left: std.ArrayList(u32) = .empty;
        for (own) |value| if (!c.noted.isSet(value)) try left.append(c.arena, value);
        found.left = left.items;
    }

    /// Add the block's own values that a step touches, within its blocks too, and no later one.
    fn touch(c: *Checker, found: *const Action, unused: *std.ArrayList(u32)) Failure!void {
        switch (found.*) {
            inline else => |s| inline for (comptime std.meta.fieldNames(@TypeOf(s))) |name| {
                const item = @field(s, name);
                if (@TypeOf(item) == i64 and comptime !std.mem.eql(u8, name, "axis")) try c.touched(&.{item}, unused);
                if (@TypeOf(item) == []const i64) try c.touched(item, unused);
            },
        }
        switch (found.*) {
            .branch => |s| for ([_]usize{ s.then, s.otherwise }) |number| try c.touchWithin(number, unused),
            .loop => |s| try c.touchWithin(s.body, unused),
            else => {},
        }
    }

    fn touchWithin(c: *Checker, number: usize, unused: *std.ArrayList(u32)) Failure!void {
        const within = &c.program.blocks[number];
        for (within.steps) |*one| try c.touch(&one.action, unused);
        try c.touched(within.outputs, unused);
    }

    fn touched(c: *Checker, values: []const i64, unused: *std.ArrayList(u32)) Failure!void {
        for (values) |value| {
            if (value == none or c.owners[@intCast(value)] != c.current or c.later.isSet(@intCast(value))) continue;
            c.later.set(@intCast(value));
            c.noted.set(@intCast(value));
            try unused.append(c.arena, @intCast(value));
        }
    }
};
