//! The program of a library (docs/format.md, "Program"), read from its words. `check.zig` checks what its functions do.
const std = @import("std");
const abi = @import("abi.zig");
const expression = @import("expression.zig");
const message = @import("message.zig");
const Error = message.Error;

pub const Port = extern struct { name: [*:0]const u8, dtype: abi.Dtype, rank: i32, shape: [abi.max_rank]i64 };
pub const Weight = struct { offset: u64, size: u64 };
pub const Constraint = struct { not_negative: bool, text: [:0]const u8, expression: []const i64 };
pub const Fixed = struct { extent: usize, size: i64 };
pub const Role = enum(i64) { main = 0, entry = 1, prepare = 2 };
pub const Kind = enum(i64) { input = 0, weight = 1, prepared = 2, constant = 3, scratch = 4, kept = 5, dynamic = 6 };
pub const Code = enum(i64) { call = 1, match = 2, match_values = 3, storage = 4, tensor = 5, view = 6, alias = 7, jump = 8, if_not = 9, done = 10, compute = 11 };

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

/// `target`: the operation that a jump goes to.
pub const Operation = struct { code: Code, words: []const i64, target: u32 = 0 };

pub const Function = struct {
    role: Role,
    fixed: []const Fixed,
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
    constants: []const u8,
    words: usize,
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

pub fn damaged(comptime what: []const u8, arguments: anytype) Error {
    return message.fail(error.Damaged, "program of the library: expected a table as docs/format.md describes it, found " ++ what ++ "\nfix: build the library anew", arguments);
}

const Reader = struct {
    arena: std.mem.Allocator,
    words: []const i64,
    texts: []const u8,
    at: usize = 0,

    fn word(r: *Reader) Error!i64 {
        if (r.at == r.words.len) return damaged("one that is cut off", .{});
        r.at += 1;
        return r.words[r.at - 1];
    }

    /// A whole number from 0 to `limit`.
    fn number(r: *Reader, limit: usize) Error!usize {
        const value = try r.word();
        if (value < 0 or value > limit) return damaged("{d} at word {d}, where at most {d} can be", .{ value, r.at - 1, limit });
        return @intCast(value);
    }

    /// How many rows follow: each takes a word at least.
    fn count(r: *Reader) Error!usize {
        return r.number(r.words.len - r.at);
    }

    fn take(r: *Reader, size: usize) Error![]const i64 {
        if (size > r.words.len - r.at) return damaged("one that is cut off", .{});
        r.at += size;
        return r.words[r.at - size .. r.at];
    }

    fn text(r: *Reader) Error![:0]const u8 {
        if (r.texts.len == 0) return damaged("no texts", .{});
        const start = try r.number(r.texts.len - 1);
        return std.mem.sliceTo(r.texts[start .. r.texts.len - 1 :0], 0);
    }

    fn dtype(r: *Reader) Error!abi.Dtype {
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

    fn rows(r: *Reader, comptime T: type, comptime one: fn (*Reader) Error!T) Error![]const T {
        const list = try r.make(T, try r.count());
        for (list) |*item| item.* = try one(r);
        return list;
    }

    fn make(r: *Reader, comptime T: type, size: usize) Error![]T {
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
        const place: Kind = @fromBackingInt(@as(i64, @intCast(try r.number(6))));
        return .{ .dtype = kind, .kind = place, .where = try r.number(1 << 46), .shape = try r.take(rank) };
    }

    fn function(r: *Reader) Error!Function {
        const role: Role = @fromBackingInt(@as(i64, @intCast(try r.number(2))));
        const fixes = try r.rows(Fixed, fixed);
        const heap = try r.number(1 << 20);
        const scratch = try r.number(1 << 46);
        const kept = try r.number(1 << 46);
        const buffers = try r.number(1 << 20);
        const tensors = try r.rows(Row, row);
        const words = try r.take(try r.count());
        return .{ .role = role, .fixed = fixes, .heap = heap, .scratch = scratch, .kept = kept, .buffers = buffers, .rows = tensors, .operations = try r.operations(words) };
    }

    fn operations(r: *Reader, words: []const i64) Error![]const Operation {
        var total: usize = 0;
        var at: usize = 0;
        while (at < words.len) : (total += 1) {
            if (words.len - at < 2 or words[at + 1] < 0 or words[at + 1] > words.len - at - 2) return damaged("an operation that is cut off", .{});
            if (words[at] < 1 or words[at] > 11) return damaged("operation {d}", .{words[at]});
            at += 2 + @as(usize, @intCast(words[at + 1]));
        }
        const list = try r.make(Operation, total);
        const places = try r.make(usize, total);
        at = 0;
        for (list, places) |*operation, *place| {
            const size: usize = @intCast(words[at + 1]);
            operation.* = .{ .code = @fromBackingInt(words[at]), .words = words[at + 2 ..][0..size] };
            place.* = at;
            at += 2 + size;
        }
        for (list, 0..) |*operation, index| {
            const wanted = switch (operation.code) {
                .jump => if (operation.words.len == 1) operation.words[0] else return damaged("a jump of {d} words", .{operation.words.len}),
                .if_not => if (operation.words.len == 2) operation.words[1] else return damaged("a branch of {d} words", .{operation.words.len}),
                else => continue,
            };
            const target = std.sort.binarySearch(usize, places, wanted, comparePlaces) orelse return damaged("a jump into an operation", .{});
            if (target <= index) return damaged("a jump backwards", .{});
            operation.target = @intCast(target);
        }
        return list;
    }
};

fn comparePlaces(wanted: i64, place: usize) std.math.Order {
    return std.math.order(wanted, @as(i64, @intCast(place)));
}

/// Read the tables of `blob`, which must stay. Its code is not to be run before `check.all`.
pub fn read(arena: std.mem.Allocator, blob: []align(8) const u8) Error!Program {
    if (blob.len < 64) return damaged("{d} bytes", .{blob.len});
    const head = std.mem.bytesAsSlice(i64, blob[0..64]);
    if (!std.mem.eql(u8, blob[0..8], "FORGEPRG") or head[1] != 1 or head[2] != blob.len or head[6] != 0 or head[7] != 0)
        return damaged("another version, or a length that is not its own", .{});
    const count = head[3];
    if (count < 0 or count > (blob.len - 64) / 8 or head[4] != 64 + 8 * count) return damaged("texts elsewhere", .{});
    if (head[5] < head[4] or head[5] > blob.len or @mod(head[5], abi.alignment) != 0) return damaged("constants elsewhere", .{});
    const texts: usize = @intCast(head[4]);
    const constants: usize = @intCast(head[5]);
    if (constants > texts and blob[constants - 1] != 0) return damaged("a text without an end", .{});
    const words: []const i64 = @alignCast(std.mem.bytesAsSlice(i64, blob[64..texts]));
    var r: Reader = .{ .arena = arena, .words = words, .texts = blob[texts..constants] };
    const program: Program = .{
        .kernels = try r.rows([:0]const u8, Reader.text),
        .weights = try r.rows(Weight, Reader.weight),
        .extents = try r.rows([:0]const u8, Reader.text),
        .inputs = try r.rows(Port, Reader.port),
        .outputs = try r.rows(Port, Reader.port),
        .triple = try r.text(),
        .cpu_flags = try r.rows([:0]const u8, Reader.text),
        .constraints = try r.rows(Constraint, Reader.constraint),
        .functions = try r.rows(Function, Reader.function),
        .constants = blob[constants..],
        .words = words.len,
    };
    if (r.at != words.len) return damaged("{d} words too many", .{words.len - r.at});
    try checkPorts(&program, program.inputs);
    try checkPorts(&program, program.outputs);
    for (program.constraints) |item| try expression.check(item.expression, program.extents.len);
    return program;
}

fn checkPorts(program: *const Program, ports: []const Port) Error!void {
    for (ports) |p| for (p.shape[0..@intCast(p.rank)]) |extent| {
        if (extent < 0 and ~extent >= program.extents.len) return damaged("extent {d} of {d}", .{ ~extent, program.extents.len });
        if (extent > 1 << 40) return damaged("an array of {d} rows", .{extent});
    };
}
