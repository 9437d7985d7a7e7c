//! What a program with control flow works on: tensors, and lists of them. Values hold the buffers that they lie in.
const std = @import("std");
const abi = @import("abi.zig");
const memory = @import("buffers.zig");
const message = @import("message.zig");
const p = @import("program.zig");
const Buffer = memory.Buffer;
const Buffers = memory.Buffers;
const Error = message.Error;

/// Rows without gaps. Without an owner it lies in the caller's memory, or in the model's. `data` is null where it has a
/// shape and no contents.
pub const Tensor = struct {
    data: ?[*]u8 = null,
    owner: ?*Buffer = null,
    dtype: abi.Dtype,
    rank: u32,
    shape: [abi.max_rank]i64 = @splat(0),

    pub fn of(dtype: abi.Dtype, shape: []const i64) Tensor {
        var tensor: Tensor = .{ .dtype = dtype, .rank = @intCast(shape.len) };
        @memcpy(tensor.shape[0..shape.len], shape);
        return tensor;
    }

    pub fn extents(tensor: *const Tensor) []const i64 {
        return tensor.shape[0..tensor.rank];
    }

    pub fn bytes(tensor: *const Tensor) []u8 {
        const size = p.bytes(tensor.dtype, tensor.extents()) orelse unreachable; // it lies in memory
        return if (tensor.data) |data| data[0..@intCast(size)] else &.{};
    }

    pub fn hold(tensor: *const Tensor) Tensor {
        if (tensor.owner) |buffer| _ = buffer.hold();
        return tensor.*;
    }

    /// How many elements there are, of any tensor.
    pub fn count(tensor: *const Tensor) usize {
        return @intCast(p.bytes(.{ .code = 1, .bits = 8, .lanes = 1 }, tensor.extents()) orelse 0);
    }

    /// An element of a tensor of whole numbers or flags.
    pub fn whole(tensor: *const Tensor, index: usize) Error!i64 {
        const width: usize = @intCast(tensor.dtype.width());
        const at = tensor.bytes()[index * width ..][0..width];
        return switch (tensor.dtype.code) {
            0 => switch (width) {
                1 => @as(i8, @bitCast(at[0])),
                2 => std.mem.readInt(i16, at[0..2], .little),
                4 => std.mem.readInt(i32, at[0..4], .little),
                else => std.mem.readInt(i64, at[0..8], .little),
            },
            1, 6 => switch (width) {
                1 => at[0],
                2 => std.mem.readInt(u16, at[0..2], .little),
                4 => std.mem.readInt(u32, at[0..4], .little),
                else => std.math.lossyCast(i64, std.mem.readInt(u64, at[0..8], .little)),
            },
            else => refused("whole numbers", "floats", .{}),
        };
    }
};

/// Tensors in a buffer of its own, which is changed only while nobody else holds it.
pub const List = struct {
    buffer: *Buffer,
    count: usize,

    pub fn items(list: List) []Tensor {
        return list.room()[0..list.count];
    }

    /// All places that there are.
    pub fn room(list: List) []Tensor {
        const places: [*]Tensor = @ptrCast(@alignCast(list.buffer.memory.ptr));
        return places[0 .. list.buffer.memory.len / @sizeOf(Tensor)];
    }
};

pub const Value = union(enum) {
    none,
    tensor: Tensor,
    list: List,

    pub fn hold(value: *const Value) Value {
        switch (value.*) {
            .none => {},
            .tensor => |*tensor| _ = tensor.hold(),
            .list => |list| _ = list.buffer.hold(),
        }
        return value.*;
    }

    /// Give up what the value holds: it is none.
    pub fn drop(value: *Value, buffers: *Buffers) void {
        switch (value.*) {
            .none => {},
            .tensor => |tensor| if (tensor.owner) |owner| buffers.give(owner),
            .list => |list| {
                if (list.buffer.holders == 1) for (list.items()) |item| if (item.owner) |owner| buffers.give(owner);
                buffers.give(list.buffer);
            },
        }
        value.* = .none;
    }
};

/// A tensor in a buffer of its own, of contents that are anything.
pub fn make(buffers: *Buffers, dtype: abi.Dtype, shape: []const i64) Error!Tensor {
    if (shape.len > abi.max_rank) return refused("arrays of at most {d} axes", "one of {d}", .{ abi.max_rank, shape.len });
    const size = p.bytes(dtype, shape) orelse return refused("arrays that there is memory for", "one of too many elements", .{});
    var tensor: Tensor = .of(dtype, shape);
    const buffer = try buffers.take(@intCast(size));
    tensor.owner = buffer;
    tensor.data = buffer.memory.ptr;
    return tensor;
}

/// A list of `count` places, which are to be set.
pub fn makeList(buffers: *Buffers, count: usize) Error!List {
    const size = std.math.mul(usize, count, @sizeOf(Tensor)) catch return refused("lists that there is memory for", "one of {d}", .{count});
    return .{ .buffer = try buffers.take(size), .count = count };
}

/// The data, or sizes that it decides, ask for what cannot be.
pub fn refused(comptime expected: []const u8, comptime found: []const u8, arguments: anytype) Error {
    return message.failIn(error.Input, &.{ .head = "inputs: expected ", .tail = "\nfix: give inputs that the model is made for" }, expected ++ ", found " ++ found, arguments);
}
