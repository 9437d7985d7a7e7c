//! Checks a program before it runs, so that no table can read or write outside: every index against its table, every
//! tensor against what it lies in, every value set before it is used. What depends on sizes of a call is checked in
//! `frame.zig`. What kernels do with their arguments is up to them: they compare shapes and dtypes with what they take, or
//! were made for this very program (`model.zig`).
const std = @import("std");
const abi = @import("abi.zig");
const blocks = @import("blocks.zig");
const p = @import("program.zig");
const message = @import("message.zig");
const Error = message.Error;
const damaged = p.damaged;

const Bits = std.bit_set.DynamicBitSetUnmanaged;

/// What is noted about the program goes to `arena`, which is its own; `room` is needed no more afterwards.
pub fn all(arena: std.mem.Allocator, room: std.mem.Allocator, program: *const p.Program, weights: usize) Error!void {
    for (program.weights) |weight| {
        if (weight.offset % abi.alignment != 0 or weight.offset > weights or weight.size > weights - weight.offset) return damaged("a weight outside of the weights", .{});
    }
    var prepare: ?*const p.Function = null;
    var mains: usize = 0;
    for (program.functions) |*function| switch (function.role) {
        .main => mains += 1,
        .entry, .region => {},
        .prepare => if (prepare != null) return damaged("two functions that prepare", .{}) else {
            prepare = function;
        },
    };
    if (mains != @intFromBool(program.blocks.len == 0)) return damaged("{d} functions of role 0, and {d} blocks", .{ mains, program.blocks.len });
    for (program.functions) |*function| {
        if (function.operations.len == 0 or function.operations[function.operations.len - 1].code != .done) return damaged("a function without an end", .{});
        for (function.fixed) |fixed| if (fixed.extent >= program.extents.len) return damaged("a function for an extent that is not there", .{});
    }
    for (program.functions) |*function| {
        var checker: Checker = .{ .program = program, .function = function, .prepare = prepare, .room = room };
        try checker.run();
    }
    try blocks.check(arena, room, program);
}

const Checker = struct {
    program: *const p.Program,
    function: *const p.Function,
    prepare: ?*const p.Function,
    room: std.mem.Allocator,
    /// Tensors that have memory by now; those that lie in memory that kernels may write to; buffers.
    placed: Bits = .{},
    open: Bits = .{},
    made: Bits = .{},
    /// Those that lie in scratch memory.
    in_scratch: Bits = .{},

    fn bits(c: *Checker, size: usize) Error!Bits {
        return Bits.initEmpty(c.room, size) catch message.fail(error.Memory, "memory: expected room to check the program, found none\nfix: free memory", .{});
    }

    fn run(c: *Checker) Error!void {
        const f = c.function;
        if (f.scratch % abi.alignment != 0 or f.kept % abi.alignment != 0 or (f.kept != 0 and f.role != .prepare)) return damaged("memory of odd sizes", .{});
        c.placed = try c.bits(f.rows.len);
        c.open = try c.bits(f.rows.len);
        c.in_scratch = try c.bits(f.rows.len);
        c.made = try c.bits(f.buffers);
        const inputs = c.program.inputsOf(f);
        if (f.rows.len < inputs) return damaged("inputs without tensors", .{});
        for (f.rows, 0..) |row, index| {
            const is_input = row.kind == .input or row.kind == .shape;
            if (is_input != (index < inputs) or (is_input and row.where != index)) return damaged("an input in another place", .{});
            try c.checkRow(row, index);
            c.placed.setValue(index, row.kind != .dynamic);
            c.open.setValue(index, row.kind == .scratch or row.kind == .kept);
            c.in_scratch.setValue(index, row.kind == .scratch);
        }
        for (f.region.extents) |extent| {
            if (extent.input >= inputs or extent.axis >= f.rows[extent.input].shape.len) return damaged("demands on an axis that is not there", .{});
        }
        for (f.operations, 1..) |operation, count| {
            try c.checkOperation(operation);
            if (operation.code == .done and count != f.operations.len) return damaged("an end before the end", .{});
        }
    }

    fn checkRow(c: *Checker, row: p.Row, index: usize) Error!void {
        const f = c.function;
        for (row.shape) |extent| if (extent < -1 or extent > 1 << 40) return damaged("an extent of {d}", .{extent});
        const room: u64 = switch (row.kind) {
            .dynamic => return,
            .shape => if (f.role == .region) return else return damaged("an input without contents", .{}),
            .input => {
                if (f.role == .region) return;
                const own = c.program.inputs;
                const port = if (index < own.len) own[index] else c.program.states[index - own.len].input;
                if (!port.dtype.equals(row.dtype) or port.rank != row.shape.len) return damaged("an input of another kind", .{});
                return c.checkInput(row, port);
            },
            .weight => if (row.where < c.program.weights.len) c.program.weights[@intCast(row.where)].size else return damaged("a weight that is not there", .{}),
            .prepared => try c.preparedSize(row),
            .constant => try c.areaLeft(row.where, c.program.constants.len),
            .scratch => try c.areaLeft(row.where, f.scratch),
            .kept => try c.areaLeft(row.where, f.kept),
        };
        const size = row.size() orelse return damaged("tensor {d} of a size that nobody knows", .{index});
        if (size > room) return damaged("tensor {d} outside of what it lies in", .{index});
    }

    /// Extents that are numbers are those of the port, or what the function is for.
    fn checkInput(c: *Checker, row: p.Row, port: p.Port) Error!void {
        for (row.shape, port.shape[0..row.shape.len]) |extent, wanted| {
            if (extent < 0 or extent == wanted) continue;
            const is_fixed = wanted < 0 and for (c.function.fixed) |fixed| {
                if (fixed.extent == ~wanted and fixed.size == extent) break true;
            } else false;
            if (!is_fixed) return damaged("an input of another shape", .{});
        }
    }

    fn preparedSize(c: *Checker, row: p.Row) Error!u64 {
        const prepare = c.prepare orelse return damaged("a prepared weight that nobody prepares", .{});
        const results = prepare.operations[prepare.operations.len - 1].words;
        if (c.function.role == .prepare or results.len == 0 or row.where >= results.len - 1) return damaged("a prepared weight that nobody prepares", .{});
        const tensor = results[1 + @as(usize, @intCast(row.where))];
        if (tensor < 0 or tensor >= prepare.rows.len) return damaged("a prepared weight that is not there", .{});
        const made = prepare.rows[@intCast(tensor)];
        if (made.kind != .kept and made.kind != .weight) return damaged("a prepared weight that is not kept", .{});
        return made.size() orelse damaged("a prepared weight of a size that nobody knows", .{});
    }

    fn areaLeft(_: *Checker, where: u64, size: usize) Error!u64 {
        if (where % abi.alignment != 0 or where > size) return damaged("a tensor outside of its memory", .{});
        return size - where;
    }

    fn checkOperation(c: *Checker, operation: p.Operation) Error!void {
        const w = operation.words;
        switch (operation.code) {
            .call => {
                if (w.len < 2 or w[0] < 0 or w[0] >= c.program.kernels.len or w[1] != w.len - 2) return damaged("a call of something that is not there", .{});
                for (w[2..]) |argument| try c.checkArgument(argument);
                if (w.len > 2 and w[w.len - 1] & 3 == 0 and !c.open.isSet(@intCast(w[w.len - 1] >> 2))) return damaged("a kernel whose result would be a weight or an input", .{});
            },
            .compute => {
                if (w.len < 3 or w[1] < 0 or w[1] >= c.program.kernels.len or w[2] != w.len - 3) return damaged("a call of something that is not there", .{});
                try c.slot(w[0]);
                for (w[3..]) |argument| try c.checkArgument(argument);
            },
            .match => {
                if (w.len < 2 or w[1] < 0 or w.len - 2 != 2 * @as(u64, @intCast(w[1]))) return damaged("a comparison that is cut off", .{});
                const row = try c.placedRow(w[0]);
                if (w[1] != row.shape.len) return damaged("a comparison of another rank", .{});
                for (0..row.shape.len) |i| switch (w[2 + 2 * i]) {
                    0, 2 => {},
                    1, 3 => try c.slot(w[3 + 2 * i]),
                    else => return damaged("a comparison of kind {d}", .{w[2 + 2 * i]}),
                };
            },
            .storage => {
                if (w.len != 3) return damaged("a buffer that is cut off", .{});
                try c.number(w[1..3]);
                c.made.set(try c.buffer(w[0]));
            },
            .tensor => {
                if (w.len < 5) return damaged("a tensor that is cut off", .{});
                if (!c.made.isSet(try c.buffer(w[1]))) return damaged("a tensor in a buffer that is not there yet", .{});
                try c.number(w[2..4]);
                try c.place(w[0], w[4..]);
                c.mark(w[0], true, false);
            },
            .view => {
                if (w.len < 3) return damaged("a view that is cut off", .{});
                _ = try c.used(w[1]);
                try c.place(w[0], w[2..]);
                c.mark(w[0], c.open.isSet(@intCast(w[1])), c.in_scratch.isSet(@intCast(w[1])));
            },
            .state => {
                if (w.len < 3) return damaged("a state that is cut off", .{});
                const state = c.program.states[try c.within(w[1], c.program.states.len)];
                const row = try c.destination(w[0]);
                if (c.function.role == .prepare or state.most == 0) return damaged("a state that does not grow", .{});
                if (!row.dtype.equals(state.input.dtype) or row.shape.len != state.input.rank) return damaged("a state of another kind", .{});
                try c.place(w[0], w[2..]);
                c.mark(w[0], true, false);
            },
            .done => try c.checkResults(w),
        }
    }

    fn checkArgument(c: *Checker, argument: i64) Error!void {
        switch (argument & 3) {
            0 => _ = try c.used(argument >> 2),
            1 => try c.slot(argument >> 2),
            2 => {},
            else => _ = try c.within(argument >> 2, c.function.heap + 1),
        }
    }

    fn checkResults(c: *Checker, w: []const i64) Error!void {
        if (w.len < 1 or w[0] != w.len - 1) return damaged("results that are cut off", .{});
        for (w[1..]) |tensor| _ = try c.used(tensor);
        if (c.function.role == .prepare) return;
        if (c.function.role == .region) return c.checkGiven(w[1..]);
        const outputs = c.program.outputs.len;
        const count = outputs + c.program.states.len;
        if (w.len - 1 != count) return damaged("{d} results for {d} outputs", .{ w.len - 1, count });
        for (w[1..], 0..) |tensor, index| {
            const port = if (index < outputs) c.program.outputs[index] else c.program.states[index - outputs].output;
            const row = c.function.rows[@intCast(tensor)];
            if (!port.dtype.equals(row.dtype) or port.rank != row.shape.len) return damaged("an output of another kind", .{});
        }
    }

    /// What a region gives must stay when others run: it lies in no memory that they share.
    fn checkGiven(c: *Checker, tensors: []const i64) Error!void {
        for (tensors) |tensor| if (c.in_scratch.isSet(@intCast(tensor))) return damaged("a result of a region in scratch memory", .{});
    }

    fn within(_: *Checker, value: i64, count: usize) Error!usize {
        if (value < 0 or value >= count) return damaged("index {d} of {d}", .{ value, count });
        return @intCast(value);
    }

    fn placedRow(c: *Checker, tensor: i64) Error!p.Row {
        const at = try c.within(tensor, c.function.rows.len);
        if (!c.placed.isSet(at)) return damaged("tensor {d} before it has memory", .{tensor});
        return c.function.rows[at];
    }

    /// The row of a tensor whose contents are there.
    fn used(c: *Checker, tensor: i64) Error!p.Row {
        const row = try c.placedRow(tensor);
        if (row.kind == .shape) return damaged("contents of tensor {d}, which has none", .{tensor});
        return row;
    }

    fn destination(c: *Checker, tensor: i64) Error!p.Row {
        const row = c.function.rows[try c.within(tensor, c.function.rows.len)];
        if (row.kind != .dynamic) return damaged("tensor {d}, which has its place, put elsewhere", .{tensor});
        return row;
    }

    fn mark(c: *Checker, tensor: i64, is_open: bool, in_scratch: bool) void {
        c.placed.set(@intCast(tensor));
        c.open.setValue(@intCast(tensor), is_open);
        c.in_scratch.setValue(@intCast(tensor), in_scratch);
    }

    /// `words`: rank, and a number for each axis.
    fn place(c: *Checker, tensor: i64, words: []const i64) Error!void {
        const row = try c.destination(tensor);
        if (words[0] != row.shape.len or words.len - 1 != 2 * row.shape.len) return damaged("tensor {d} in another rank", .{tensor});
        for (0..row.shape.len) |axis| try c.number(words[1 + 2 * axis ..][0..2]);
    }

    fn buffer(c: *Checker, value: i64) Error!usize {
        return c.within(value, c.function.buffers);
    }

    fn slot(c: *Checker, value: i64) Error!void {
        _ = try c.within(value, c.function.heap);
    }

    fn number(c: *Checker, words: []const i64) Error!void {
        if (words[0] == 1) return c.slot(words[1]);
        if (words[0] != 0) return damaged("a number of kind {d}", .{words[0]});
    }
};
