//! Compares an output with what was expected, and makes random inputs: elements of any dtype as float64.
const std = @import("std");
const abi = @import("core").abi;

pub const Difference = struct { wrong: usize = 0, elements: usize = 0, greatest: f64 = 0 };

/// The element as a number; whole numbers above 2^53 are rounded.
fn element(dtype: abi.Dtype, data: []const u8, index: usize) f64 {
    const at = data[index * @as(usize, @intCast(dtype.width())) ..];
    return switch (dtype.code) {
        0 => switch (dtype.bits) {
            8 => @floatFromInt(@as(i8, @bitCast(at[0]))),
            16 => @floatFromInt(std.mem.readInt(i16, at[0..2], .little)),
            32 => @floatFromInt(std.mem.readInt(i32, at[0..4], .little)),
            else => @floatFromInt(std.mem.readInt(i64, at[0..8], .little)),
        },
        2 => switch (dtype.bits) {
            16 => @as(f16, @bitCast(std.mem.readInt(u16, at[0..2], .little))),
            32 => @as(f32, @bitCast(std.mem.readInt(u32, at[0..4], .little))),
            else => @bitCast(std.mem.readInt(u64, at[0..8], .little)),
        },
        4 => @as(f32, @bitCast(@as(u32, std.mem.readInt(u16, at[0..2], .little)) << 16)),
        else => switch (dtype.bits) {
            8 => @floatFromInt(at[0]),
            16 => @floatFromInt(std.mem.readInt(u16, at[0..2], .little)),
            32 => @floatFromInt(std.mem.readInt(u32, at[0..4], .little)),
            else => @floatFromInt(std.mem.readInt(u64, at[0..8], .little)),
        },
    };
}

/// |found - expected| <= atol + rtol |expected|; NaN goes with NaN.
pub fn arrays(dtype: abi.Dtype, found: []const u8, expected: []const u8, rtol: f64, atol: f64) Difference {
    const width: usize = @intCast(dtype.width());
    var result: Difference = .{ .elements = found.len / width };
    for (0..result.elements) |index| {
        if (std.mem.eql(u8, found[index * width ..][0..width], expected[index * width ..][0..width])) continue;
        const a = element(dtype, found, index);
        const b = element(dtype, expected, index);
        if (std.math.isNan(a) and std.math.isNan(b)) continue;
        const difference = @abs(a - b);
        if (!(difference <= result.greatest)) result.greatest = difference;
        if (!(difference <= atol + rtol * @abs(b))) result.wrong += 1;
    }
    return result;
}

/// Floats of a normal distribution; bytes of any value; 0 or 1 for wider whole numbers, which may be places in a table.
pub fn fill(random: std.Random, dtype: abi.Dtype, data: []u8) void {
    const width: usize = @intCast(dtype.width());
    var at: usize = 0;
    while (at < data.len) : (at += width) {
        const to = data[at..][0..width];
        if (dtype.code == 2 or dtype.code == 4) {
            const value = random.floatNorm(f64);
            switch (width) {
                2 => std.mem.writeInt(u16, to[0..2], if (dtype.code == 2) @bitCast(@as(f16, @floatCast(value))) else @truncate(@as(u32, @bitCast(@as(f32, @floatCast(value)))) >> 16), .little),
                4 => std.mem.writeInt(u32, to[0..4], @bitCast(@as(f32, @floatCast(value))), .little),
                else => std.mem.writeInt(u64, to[0..8], @bitCast(value), .little),
            }
        } else if (width == 1 and dtype.code != 6) {
            to[0] = random.int(u8);
        } else {
            @memset(to, 0);
            to[0] = random.int(u8) & 1;
        }
    }
}
