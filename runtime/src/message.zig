//! What went wrong: a code, and for the calling thread a sentence that says where, what was expected, what was found and
//! what to do.
const std = @import("std");

pub const Error = error{ Memory, File, Damaged, Password, Machine, Input, Kernel, Cancelled, Unsupported, Usage, Untrusted };

threadlocal var text: [1200:0]u8 = @splat(0);

/// Leave a message for the calling thread and return `code`, to be passed on. Format: "WHERE: expected ..., found ...\n
/// fix: ...", filled as `fill` says. Names come from files: what is not printable is replaced.
pub fn fail(code: Error, comptime format: []const u8, arguments: anytype) Error {
    seal(fill(text[0 .. text.len - 1], format, arguments));
    return code;
}

/// Write a format into `room`, with texts for `{s}` and whole numbers for `{d}`; return how long it is, cut to the room.
/// Formats are read when they are needed, which is seldom: code made for each of them is a third of the library.
pub fn fill(room: []u8, comptime format: []const u8, arguments: anytype) usize {
    var list: [arguments.len]Argument = undefined;
    inline for (arguments, &list) |argument, *item| item.* = .of(argument);
    comptime std.debug.assert(std.mem.countScalar(u8, format, '{') == list.len);
    return write(room, format, &list);
}

const Argument = union(enum) {
    text: []const u8,
    number: i128,

    fn of(value: anytype) Argument {
        return switch (@TypeOf(value)) {
            [*:0]const u8 => .{ .text = std.mem.span(value) },
            else => |T| switch (@typeInfo(T)) {
                .int, .comptime_int => .{ .number = value },
                else => .{ .text = value },
            },
        };
    }
};

noinline fn write(room: []u8, format: []const u8, arguments: []const Argument) usize {
    var used: usize = 0;
    var left = format;
    for (arguments) |argument| {
        const place = std.mem.indexOfScalar(u8, left, '{').?;
        used = append(room, used, left[0..place]);
        left = left[place + "{s}".len ..];
        var digits: [40]u8 = undefined;
        used = append(room, used, switch (argument) {
            .text => |found| found,
            .number => |found| decimal(&digits, found),
        });
    }
    return append(room, used, left);
}

fn decimal(digits: *[40]u8, value: i128) []const u8 {
    var at = digits.len;
    var left = @abs(value);
    while (at == digits.len or left != 0) : (left /= 10) {
        at -= 1;
        digits[at] = '0' + @as(u8, @intCast(left % 10));
    }
    if (value < 0) {
        at -= 1;
        digits[at] = '-';
    }
    return digits[at..];
}

/// Do as `fail` does with what a kernel says: its kind, and parts of a sentence.
pub fn raise(kind: ?[*:0]const u8, parts: ?[*]const ?[*:0]const u8, count: i32) void {
    const room = text[0 .. text.len - 1];
    var used = fill(room, "kernel: expected its arguments to fit, found {s}: ", .{kind orelse "an error"});
    if (parts) |items| for (0..@intCast(@max(0, count))) |index| {
        if (items[index]) |part| used = append(room, used, std.mem.span(part));
    };
    seal(append(room, used, "\nfix: give other inputs, or build the library anew"));
}

pub fn last() [*:0]const u8 {
    return &text;
}

pub fn clear() void {
    text[0] = 0;
}

fn append(room: []u8, used: usize, part: []const u8) usize {
    const size = @min(part.len, room.len - used);
    @memcpy(room[used..][0..size], part[0..size]);
    return used + size;
}

fn seal(length: usize) void {
    text[length] = 0;
    for (text[0..length], 0..) |*byte, at| {
        const is_end_of_line = byte.* == '\n' and std.mem.startsWith(u8, text[at..length], "\nfix: ");
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
