//! What the sizes of a call must keep: expressions in postfix over the inputs' extents (docs/format.md, "Expressions").
const std = @import("std");
const message = @import("message.zig");
const program = @import("program.zig");
const Error = message.Error;

const depth = 64;
const Value = union { whole: i64, float: f64 };
const Kind = enum { whole, float };

const Signature = struct { words: usize, takes: usize, of: Kind, gives: Kind };

fn signature(operation: i64) ?Signature {
    return switch (operation) {
        0, 1 => .{ .words = 1, .takes = 0, .of = .whole, .gives = .whole },
        2...8 => .{ .words = 0, .takes = 2, .of = .whole, .gives = .whole },
        9, 10 => .{ .words = 0, .takes = 1, .of = .whole, .gives = .whole },
        11 => .{ .words = 1, .takes = 1, .of = .whole, .gives = .float },
        12 => .{ .words = 1, .takes = 0, .of = .float, .gives = .float },
        13...18 => .{ .words = 1, .takes = 2, .of = .float, .gives = .float },
        19...25 => .{ .words = 1, .takes = 1, .of = .float, .gives = .float },
        26 => .{ .words = 0, .takes = 1, .of = .float, .gives = .whole },
        else => null,
    };
}

/// Refuse what does not leave one whole number, or names an extent that is not there.
pub fn check(words: []const i64, extents: usize) Error!void {
    var kinds: [depth]Kind = undefined;
    var height: usize = 0;
    var at: usize = 0;
    while (at < words.len) {
        const s = signature(words[at]) orelse return program.damaged("operation {d} in an expression", .{words[at]});
        if (at + 1 + s.words > words.len or height < s.takes or height - s.takes == depth) return program.damaged("an expression without operands, or too deep", .{});
        for (kinds[height - s.takes .. height]) |kind| if (kind != s.of) return program.damaged("an expression that mixes kinds", .{});
        const operand = if (s.words == 1) words[at + 1] else 0;
        if (words[at] == 1 and (operand < 0 or operand >= extents)) return program.damaged("an expression of extent {d}", .{operand});
        if ((words[at] == 11 or words[at] > 12) and s.words == 1 and operand != 16 and operand != 32 and operand != 64) return program.damaged("floats of {d} bits", .{operand});
        height -= s.takes;
        kinds[height] = s.gives;
        height += 1;
        at += 1 + s.words;
    }
    if (height != 1 or kinds[0] != .whole) return program.damaged("an expression that gives no whole number", .{});
}

/// The value of a checked expression; null where a number overflows.
pub fn value(words: []const i64, extents: []const i64) ?i64 {
    var stack: [depth]Value = undefined;
    var height: usize = 0;
    var at: usize = 0;
    while (at < words.len) {
        const operation = words[at];
        const s = signature(operation).?;
        const operand = if (s.words == 1) words[at + 1] else 0;
        height -= s.takes;
        const operands = stack[height .. height + s.takes];
        const made: Value = switch (operation) { // not in its place yet: an operand's kind is still there
            0 => .{ .whole = operand },
            1 => .{ .whole = extents[@intCast(operand)] },
            11 => .{ .float = rounded(@floatFromInt(operands[0].whole), operand) },
            12 => .{ .float = @bitCast(operand) },
            13...25 => .{ .float = rounded(ofFloats(operation, operands), operand) },
            26 => .{ .whole = cut(operands[0].float) },
            else => .{ .whole = ofWholes(operation, operands) orelse return null },
        };
        stack[height] = made;
        height += 1;
        at += 1 + s.words;
    }
    return stack[0].whole;
}

fn ofWholes(operation: i64, operands: []const Value) ?i64 {
    const a = operands[0].whole;
    if (operation == 9) return @intFromBool(a == 0);
    if (operation == 10) return @intFromBool(a >= 0);
    const b = operands[1].whole;
    return switch (operation) {
        2 => std.math.add(i64, a, b) catch null,
        3 => std.math.sub(i64, a, b) catch null,
        4 => std.math.mul(i64, a, b) catch null,
        5 => if (b == 0) 0 else std.math.divFloor(i64, a, b) catch null,
        6 => if (b == 0 or b == -1) 0 else a -% @divFloor(a, b) *% b,
        7 => @min(a, b),
        8 => @max(a, b),
        else => unreachable,
    };
}

fn ofFloats(operation: i64, operands: []const Value) f64 {
    const a = operands[0].float;
    const b = if (operands.len == 2) operands[1].float else 0;
    return switch (operation) {
        13 => a + b,
        14 => a - b,
        15 => a * b,
        16 => a / b,
        17 => if (std.math.isNan(a) or std.math.isNan(b)) std.math.nan(f64) else @min(a, b),
        18 => if (std.math.isNan(a) or std.math.isNan(b)) std.math.nan(f64) else @max(a, b),
        19 => -a,
        20 => @abs(a),
        21 => @floor(a),
        22 => @ceil(a),
        23 => toEven(a),
        24 => @sqrt(a),
        25 => a,
        else => unreachable,
    };
}

fn toEven(x: f64) f64 {
    const limit = 0x1p52; // above it every number is whole; adding it rounds, to even, as the CPU does
    return if (@abs(x) < limit) std.math.copysign((@abs(x) + limit) - limit, x) else x;
}

fn rounded(x: f64, bits: i64) f64 {
    return switch (bits) {
        16 => @as(f16, @floatCast(x)),
        32 => @as(f32, @floatCast(x)),
        else => x,
    };
}

fn cut(x: f64) i64 {
    if (!std.math.isFinite(x)) return 0;
    if (x >= 0x1p63) return std.math.maxInt(i64);
    return if (x <= -0x1p63) std.math.minInt(i64) else @intFromFloat(x);
}
