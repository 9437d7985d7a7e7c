//! What went wrong: a code, and for the calling thread a sentence that says where, what was expected, what was found and
//! what to do.
const std = @import("std");

pub const Error = error{ Memory, File, Damaged, Password, Machine, Input, Kernel, Cancelled, Unsupported, Usage };

threadlocal var text: [1200:0]u8 = @splat(0);

/// Leave a message for the calling thread and return `code`, to be passed on. Format: "WHERE: expected ..., found ...\n
/// fix: ...". Names come from files: what is not printable is replaced.
pub fn fail(code: Error, comptime format: []const u8, arguments: anytype) Error {
    const said = std.fmt.bufPrint(text[0 .. text.len - 1], format, arguments) catch text[0 .. text.len - 1];
    seal(said.len);
    return code;
}

/// Do as `fail` does with what a kernel says: its kind, and parts of a sentence.
pub fn raise(kind: ?[*:0]const u8, parts: ?[*]const ?[*:0]const u8, count: i32) void {
    var used = append(0, "kernel: expected its arguments to fit, found ");
    used = append(used, std.mem.span(kind orelse "an error"));
    used = append(used, ": ");
    if (parts) |items| for (0..@intCast(@max(0, count))) |index| {
        if (items[index]) |part| used = append(used, std.mem.span(part));
    };
    used = append(used, "\nfix: give other inputs, or build the library anew");
    seal(used);
}

pub fn last() [*:0]const u8 {
    return &text;
}

pub fn clear() void {
    text[0] = 0;
}

fn append(used: usize, part: []const u8) usize {
    const size = @min(part.len, text.len - 1 - used);
    @memcpy(text[used..][0..size], part[0..size]);
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
    };
}
