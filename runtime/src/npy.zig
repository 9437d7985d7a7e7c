//! NumPy's .npy files, versions 1 to 3: little-endian, C order.
const std = @import("std");
const abi = @import("core").abi;
const message = @import("core").message;
const platform = @import("core").platform;
const session = @import("core").session;
const Error = message.Error;

pub const File = struct { array: session.Array, dtype: abi.Dtype, rank: usize };

pub fn wrong(path: []const u8, comptime found: [:0]const u8) Error {
    return message.fail(error.Input, "{s}: expected an array as numpy.save writes it (little-endian, C order), found " ++ found ++ "\nfix: write it with numpy.save(path, numpy.ascontiguousarray(array))", .{path});
}

/// Bytes that every file begins with, and those before the length of the header.
pub const first = 12;

/// Where the header starts, and its bytes, by the first ones of a file.
const Extent = struct { start: usize, size: usize };

pub fn place(path: []const u8, bytes: []const u8) Error!Extent {
    if (bytes.len < first or !std.mem.eql(u8, bytes[0..6], "\x93NUMPY") or bytes[6] < 1 or bytes[6] > 3) return wrong(path, "another kind of file");
    if (bytes[6] == 1) return .{ .start = 10, .size = std.mem.readInt(u16, bytes[8..10], .little) };
    return .{ .start = 12, .size = std.mem.readInt(u32, bytes[8..12], .little) };
}

/// Read an array; it lies in memory of its own, aligned.
pub fn read(path: [:0]const u8) Error!File {
    const file = try platform.readFile(path, 1 << 46, null);
    defer platform.unmap(file.memory);
    const bytes = file.memory[0..file.size];
    const at = try place(path, bytes);
    if (at.size > bytes.len - at.start) return wrong(path, "a file that is cut off");
    var result = try described(path, bytes[at.start..][0..at.size]);
    if (result.array.size != bytes.len - at.start - at.size) return wrong(path, "a file that is cut off, or longer than its shape says");
    const memory = try platform.map(result.array.size);
    @memcpy(memory[0..result.array.size], bytes[at.start + at.size ..]);
    result.array.data = memory.ptr;
    return result;
}

/// What a header says of its array, which is not read yet.
pub fn described(path: []const u8, header: []const u8) Error!File {
    const kind = field(header, "'descr':") orelse return wrong(path, "no dtype");
    const order = field(header, "'fortran_order':") orelse return wrong(path, "no order");
    const extents = field(header, "'shape':") orelse return wrong(path, "no shape");
    if (!std.mem.startsWith(u8, order, "False")) return wrong(path, "Fortran order");
    var result: File = .{ .array = .{ .data = null, .size = 0, .shape = @splat(0) }, .dtype = dtypeOf(kind) orelse return wrong(path, "a dtype that models do not have"), .rank = 0 };
    var numbers = std.mem.tokenizeAny(u8, std.mem.sliceTo(extents[@min(1, extents.len)..], ')'), ", ");
    while (numbers.next()) |text| {
        if (result.rank == abi.max_rank) return wrong(path, "more than 8 axes");
        result.array.shape[result.rank] = std.fmt.parseInt(i64, text, 10) catch return wrong(path, "a shape that is no shape");
        result.rank += 1;
    }
    result.array.size = @intCast(@import("core").program.bytes(result.dtype, result.array.shape[0..result.rank]) orelse return wrong(path, "a shape that is no shape"));
    return result;
}

/// What follows `key` in the header, which is a Python dictionary.
fn field(header: []const u8, key: []const u8) ?[]const u8 {
    const at = std.mem.indexOf(u8, header, key) orelse return null;
    return std.mem.trimStart(u8, header[at + key.len ..], " ");
}

fn dtypeOf(text: []const u8) ?abi.Dtype {
    if (text.len < 4 or text[0] != '\'' or (text[1] != '<' and text[1] != '|')) return null;
    const bits = std.math.mul(u8, std.fmt.charToDigit(text[3], 10) catch return null, 8) catch return null;
    const code: u8 = switch (text[2]) {
        'i' => 0,
        'u' => 1,
        'f' => 2,
        'b' => 6,
        else => return null,
    };
    return .{ .code = code, .bits = bits, .lanes = 1 };
}

/// Write an array; bfloat16, which NumPy does not have, as the bits in uint16.
pub fn write(path: [:0]const u8, dtype: abi.Dtype, shape: []const i64, data: []const u8) Error!void {
    const file = try platform.create(path);
    defer platform.close(file);
    return append(file, path, dtype, shape, data);
}

/// Write an array behind what is in a file already.
pub fn append(file: i32, path: [:0]const u8, dtype: abi.Dtype, shape: []const i64, data: []const u8) Error!void {
    var text: [256]u8 = undefined;
    const letter: u8 = switch (dtype.code) {
        0 => 'i',
        1, 4 => 'u',
        2 => 'f',
        else => 'b',
    };
    const order: u8 = if (dtype.bits == 8) '|' else '<';
    var size = (std.fmt.bufPrint(&text, "{{'descr': '{c}{c}{d}', 'fortran_order': False, 'shape': (", .{ order, letter, dtype.bits / 8 }) catch unreachable).len;
    for (shape) |extent| size += (std.fmt.bufPrint(text[size..], "{d},", .{extent}) catch unreachable).len;
    size += (std.fmt.bufPrint(text[size..], "), }}", .{}) catch unreachable).len;
    const length = std.mem.alignForward(usize, 10 + size + 1, 64) - 10;
    @memset(text[size .. length - 1], ' ');
    text[length - 1] = '\n';
    const head = "\x93NUMPY\x01\x00".* ++ std.mem.toBytes(@as(u16, @intCast(length)));
    return platform.writeAll(file, path, &.{ &head, text[0..length], data });
}
