//! Numbers as people write them, for tolerances and times: some digits are enough. Those of the standard library are exact,
//! at the price of 50 KB of tables.
const std = @import("std");

/// Nanoseconds, shown as milliseconds with four digits.
pub const Milliseconds = struct {
    of: u64,

    pub fn format(value: Milliseconds, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const tenths = (value.of + 50) / 100; // of a microsecond
        try writer.print("{d}.{d:0>4}", .{ tenths / 10_000, tenths % 10_000 });
    }
};

/// A number that is not negative, shown with three digits.
pub const Decimal = struct {
    of: f64,

    pub fn format(value: Decimal, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (std.math.isNan(value.of)) return writer.writeAll("nan");
        if (value.of > std.math.floatMax(f64)) return writer.writeAll("inf");
        var scaled = value.of;
        var exponent: i32 = 0;
        while (scaled >= 10) : (exponent += 1) scaled /= 10;
        while (scaled > 0 and scaled < 1) : (exponent -= 1) scaled *= 10;
        var digits: u32 = @intFromFloat(scaled * 100 + 0.5);
        if (digits == 1000) {
            digits = 100;
            exponent += 1;
        }
        try writer.print("{d}.{d:0>2}e{d}", .{ digits / 100, digits % 100, exponent });
    }
};

/// Digits with at most one point, and an exponent; null for anything else, negative numbers too.
pub fn parse(text: []const u8) ?f64 {
    const at = std.mem.indexOfAny(u8, text, "eE") orelse text.len;
    const exponent = if (at == text.len) 0 else std.fmt.parseInt(i16, text[at + 1 ..], 10) catch return null;
    var value: f64 = 0;
    var scale: i32 = exponent;
    var has_point = false;
    if (at == 0 or (at == 1 and text[0] == '.')) return null;
    for (text[0..at]) |byte| {
        if (byte == '.' and !has_point) {
            has_point = true;
            continue;
        }
        if (byte < '0' or byte > '9') return null;
        value = value * 10 + @as(f64, @floatFromInt(byte - '0'));
        if (has_point) scale -= 1;
    }
    while (scale > 0) : (scale -= 1) value *= 10;
    while (scale < 0) : (scale += 1) value /= 10;
    return value;
}
