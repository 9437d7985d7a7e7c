//! A library with variants for several CPUs: a table at the start of the program's part, a row for each, says where in the
//! parts of the file the code, the program and the metadata of one lie. All share the weights.
const std = @import("std");
const message = @import("message.zig");
const Error = message.Error;

pub const row_size = 96;
/// More take a reader's time and memory, and nobody has so many CPUs to tell apart.
pub const limit = 16;
const name_size = 48;

pub const Parts = struct { elf: []const u8, weights: []const u8, program: []align(8) const u8, metadata: []const u8, variants: usize = 0 };

pub const Variant = struct { name: [:0]const u8, parts: Parts };

/// The variant of a row of the table, which is inside of the program's part.
pub fn at(whole: Parts, index: usize) Error!Variant {
    if (whole.variants > limit or whole.program.len < whole.variants * row_size) return damaged("{d} variants", .{whole.variants});
    const row = whole.program[index * row_size ..][0..row_size];
    const end = std.mem.indexOfScalar(u8, row[0..name_size], 0) orelse return damaged("a name without an end", .{});
    const program = try slice(whole.program, row[64..80]);
    if (@intFromPtr(program.ptr) % 8 != 0) return damaged("a program at an odd place", .{});
    return .{ .name = row[0..end :0], .parts = .{
        .elf = try slice(whole.elf, row[48..64]),
        .weights = whole.weights,
        .program = @alignCast(program),
        .metadata = try slice(whole.metadata, row[80..96]),
    } };
}

/// The bytes that an offset and a length name.
fn slice(part: []const u8, place: []const u8) Error![]const u8 {
    const offset = std.mem.readInt(u64, place[0..8], .big);
    const size = std.mem.readInt(u64, place[8..16], .big);
    if (offset > part.len or size > part.len - offset) return damaged("{d} bytes at {d} of {d}", .{ size, offset, part.len });
    return part[@intCast(offset)..][0..@intCast(size)];
}

fn damaged(comptime what: [:0]const u8, arguments: anytype) Error {
    return message.failIn(error.Damaged, &.{ .head = "variants of the library: expected a table as docs/format.md says, found ", .tail = "\nfix: build it anew" }, what, arguments);
}
