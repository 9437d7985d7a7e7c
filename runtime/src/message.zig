//! What went wrong: a code, and for the calling thread a sentence that says where, what was expected, what was found and
//! what to do.
const std = @import("std");

pub const Error = error{ Memory, File, Damaged, Password, Machine, Input, Kernel, Cancelled, Unsupported, Usage, Untrusted };

threadlocal var said: [1200:0]u8 = @splat(0);

/// What several messages begin and end with, which is kept once.
pub const Frame = struct { head: []const u8 = "", tail: []const u8 = "" };

/// Leave a message for the calling thread and return `code`, to be passed on. Format: "WHERE: expected ..., found ...\n
/// fix: ...", filled as `fill` says. Names come from files: what is not printable is replaced.
pub fn fail(code: Error, comptime format: [:0]const u8, arguments: anytype) Error {
    return failIn(code, comptime &.{}, format, arguments);
}

/// As `fail` does, between what the frame has.
///
/// One or two arguments go in registers: a list of them on the stack, and the canary behind it, took more code in each of
/// a hundred places.
pub fn failIn(code: Error, comptime frame: *const Frame, comptime format: [:0]const u8, arguments: anytype) Error {
    @branchHint(.cold);
    comptime std.debug.assert(std.mem.countScalar(u8, format, '{') == arguments.len);
    switch (arguments.len) {
        0 => return tellNone(code, frame, format),
        1 => return tellOne(code, frame, format, .of(arguments[0])),
        2 => tellTwo(frame, format, .of(arguments[0]), .of(arguments[1])),
        else => tell(frame, format, &listed(format, arguments)),
    }
    return code;
}

noinline fn tellNone(code: Error, frame: *const Frame, format: [*:0]const u8) Error {
    tell(frame, std.mem.span(format), &.{});
    return code;
}

noinline fn tellOne(code: Error, frame: *const Frame, format: [*:0]const u8, one: Argument) Error {
    tell(frame, std.mem.span(format), &.{one});
    return code;
}

noinline fn tellTwo(frame: *const Frame, format: [*:0]const u8, one: Argument, two: Argument) void {
    tell(frame, std.mem.span(format), &.{ one, two });
}

/// Write a format into `room`, with texts for `{s}` and whole numbers for `{d}`; return how long it is, cut to the room.
/// Formats are read when they are needed, which is seldom: code made for each of them is a third of the library.
pub fn fill(room: []u8, comptime format: []const u8, arguments: anytype) usize {
    return write(room, 0, format, &listed(format, arguments));
}

/// A text, where and how long it is, or a number, which has no length: two words, since there are hundreds of them.
const Argument = struct {
    value: u64,
    size: usize,

    const signed = std.math.maxInt(usize);
    const unsigned = signed - 1;

    fn of(value: anytype) Argument {
        return switch (@TypeOf(value)) {
            [*:0]const u8 => .of(@as([]const u8, std.mem.span(value))),
            comptime_int => .{ .value = value, .size = unsigned },
            else => |T| switch (@typeInfo(T)) {
                .int => |int| if (int.signedness == .signed) .{ .value = @bitCast(@as(i64, value)), .size = signed } else .{ .value = value, .size = unsigned },
                else => .{ .value = @intFromPtr(@as([]const u8, value).ptr), .size = @as([]const u8, value).len },
            },
        };
    }

    fn text(argument: Argument, digits: *[24]u8) []const u8 {
        const is_negative = argument.size == signed and argument.value >> 63 != 0;
        if (argument.size < unsigned) return @as([*]const u8, @ptrFromInt(@as(usize, @intCast(argument.value))))[0..argument.size];
        return decimal(digits, if (is_negative) 0 -% argument.value else argument.value, is_negative);
    }
};

inline fn listed(comptime format: []const u8, arguments: anytype) [arguments.len]Argument {
    var list: [arguments.len]Argument = undefined;
    inline for (arguments, &list) |argument, *item| item.* = .of(argument);
    comptime std.debug.assert(std.mem.countScalar(u8, format, '{') == list.len);
    return list;
}

noinline fn tell(frame: *const Frame, format: []const u8, arguments: []const Argument) void {
    const room = said[0 .. said.len - 1];
    const used = write(room, append(room, 0, frame.head), format, arguments);
    seal(append(room, used, frame.tail));
}

noinline fn write(room: []u8, start: usize, format: []const u8, arguments: []const Argument) usize {
    var used = start;
    var left = format;
    for (arguments) |argument| {
        const place = std.mem.indexOfScalar(u8, left, '{').?;
        used = append(room, used, left[0..place]);
        left = left[place + "{s}".len ..];
        var digits: [24]u8 = undefined;
        used = append(room, used, argument.text(&digits));
    }
    return append(room, used, left);
}

fn decimal(digits: *[24]u8, value: u64, is_negative: bool) []const u8 {
    var at = digits.len;
    var left = value;
    while (at == digits.len or left != 0) : (left /= 10) {
        at -= 1;
        digits[at] = '0' + @as(u8, @intCast(left % 10));
    }
    if (is_negative) {
        at -= 1;
        digits[at] = '-';
    }
    return digits[at..];
}

/// Do as `fail` does with what a kernel says: its kind, and parts of a sentence.
pub fn raise(kind: ?[*:0]const u8, parts: ?[*]const ?[*:0]const u8, count: i32) void {
    const room = said[0 .. said.len - 1];
    var used = fill(room, "kernel: expected its arguments to fit, found {s}: ", .{kind orelse "an error"});
    if (parts) |items| for (0..@intCast(@max(0, count))) |index| {
        if (items[index]) |part| used = append(room, used, std.mem.span(part));
    };
    seal(append(room, used, "\nfix: give other inputs, or build the library anew"));
}

pub fn last() [*:0]const u8 {
    return &said;
}

pub fn clear() void {
    said[0] = 0;
}

noinline fn append(room: []u8, used: usize, part: []const u8) usize {
    const size = @min(part.len, room.len - used);
    @memcpy(room[used..][0..size], part[0..size]);
    return used + size;
}

noinline fn seal(length: usize) void {
    said[length] = 0;
    for (said[0..length], 0..) |*byte, at| {
        const is_end_of_line = byte.* == '\n' and std.mem.startsWith(u8, said[at..length], "\nfix: ");
        if ((byte.* < ' ' and !is_end_of_line) or byte.* == 127) byte.* = '?';
    }
}

/// The number that `forge.h` has for an error.
pub fn number(code: Error) c_int {
    return switch (code) {
        error.Memory => 1,
        error.File => 2,
        error.Damaged => 3,
        error.Password => 4,
        error.Machine => 5,
        error.Input => 6,
        error.Kernel => 7,
        error.Cancelled => 8,
        error.Unsupported => 9,
        error.Usage => 10,
        error.Untrusted => 11,
    };
}
