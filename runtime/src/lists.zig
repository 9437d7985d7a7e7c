//! Steps on lists: a list never changes for who holds it, and is changed in place where nobody else does.
const std = @import("std");
const abi = @import("abi.zig");
const memory = @import("buffers.zig");
const message = @import("message.zig");
const values = @import("values.zig");
const Buffers = memory.Buffers;
const Error = message.Error;
const List = values.List;
const Tensor = values.Tensor;
const refused = values.refused;

/// Which of `count` places a number says; negative ones count from the end.
pub fn place(said: i64, count: usize) Error!usize {
    const total: i64 = @intCast(count);
    if (said < -total or said >= total) return refused("a place in a list of {d}", "{d}", .{ total, said });
    return @intCast(if (said < 0) said + total else said);
}

/// The list, which the caller holds and gives up, in a buffer that nobody else holds and that has `count` places.
fn own(buffers: *Buffers, list: List, count: usize) Error!List {
    const is_alone = list.buffer.holders == 1;
    if (is_alone and list.room().len >= count) return list;
    errdefer {
        var left: values.Value = .{ .list = list };
        left.drop(buffers);
    }
    const copy = try values.makeList(buffers, count + count / 2);
    for (list.items(), copy.room()[0..list.count]) |*item, *to| to.* = if (is_alone) item.* else item.hold();
    buffers.give(list.buffer);
    return .{ .buffer = copy.buffer, .count = list.count };
}

/// The list, which the caller gives up, with a tensor before the one at `at`.
pub fn insert(buffers: *Buffers, list: List, at: usize, tensor: *const Tensor) Error!List {
    const mine = try own(buffers, list, list.count + 1);
    const room = mine.room()[0 .. mine.count + 1];
    std.mem.copyBackwards(Tensor, room[at + 1 ..], room[at..mine.count]);
    room[at] = tensor.hold();
    return .{ .buffer = mine.buffer, .count = mine.count + 1 };
}

/// The list, which the caller gives up, without the tensor at `at`.
pub fn erase(buffers: *Buffers, list: List, at: usize) Error!List {
    const mine = try own(buffers, list, list.count);
    const room = mine.items();
    if (room[at].owner) |owner| buffers.give(owner);
    std.mem.copyForwards(Tensor, room[at .. mine.count - 1], room[at + 1 ..]);
    return .{ .buffer = mine.buffer, .count = mine.count - 1 };
}

fn axisOf(said: i64, rank: usize) Error!usize {
    const axes: i64 = @intCast(rank);
    if (said < -axes or said >= axes) return refused("an array with axis {d}", "one of {d} axes", .{ said, rank });
    return @intCast(if (said < 0) said + axes else said);
}

/// How an array lies around an axis: how many times, and bytes of one entry along it.
const Rows = struct {
    outer: usize,
    inner: usize,

    fn of(tensor: *const Tensor, axis: usize) Rows {
        var rows: Rows = .{ .outer = 1, .inner = @intCast(tensor.dtype.width()) };
        for (tensor.extents(), 0..) |extent, at| {
            if (at < axis) rows.outer *|= @intCast(extent);
            if (at > axis) rows.inner *|= @intCast(extent);
        }
        return rows;
    }
};

/// Cut along an axis, to parts as long as `sizes` says; without it, to parts of 1, which may lose the axis.
pub fn split(buffers: *Buffers, whole: *const Tensor, sizes: ?*const Tensor, said: i64, drops_axis: bool) Error!List {
    const axis = try axisOf(said, whole.rank);
    const length = whole.shape[axis];
    const each: i64 = if (sizes == null) 1 else if (sizes.?.rank == 0) try sizes.?.whole(0) else 0;
    const is_listed = sizes != null and sizes.?.rank != 0;
    if (!is_listed and each <= 0) return refused("parts that are not empty", "parts of {d}", .{each});
    const count: usize = if (is_listed) sizes.?.count() else @intCast(@divFloor(length, each) + @intFromBool(@mod(length, each) != 0));
    var total: i64 = 0;
    for (0..if (is_listed) count else 0) |index| {
        const size = try sizes.?.whole(index);
        if (size < 0 or size > length - total) return refused("parts that are {d} long together", "others", .{length});
        total += size;
    }
    if (is_listed and total != length) return refused("parts that are {d} long together", "{d}", .{ length, total });
    var list = try values.makeList(buffers, count);
    list.count = 0;
    errdefer {
        var left: values.Value = .{ .list = list };
        left.drop(buffers);
    }
    var start: i64 = 0;
    for (0..count) |index| {
        const size = if (is_listed) try sizes.?.whole(index) else @min(each, length - start);
        list.room()[index] = try part(buffers, whole, axis, start, size);
        list.count += 1;
        if (sizes == null and drops_axis) withoutAxis(&list.room()[index], axis);
        start += size;
    }
    return list;
}

fn withoutAxis(tensor: *Tensor, axis: usize) void {
    std.mem.copyForwards(i64, tensor.shape[axis .. tensor.rank - 1], tensor.shape[axis + 1 .. tensor.rank]);
    tensor.rank -= 1;
}

/// Entries along an axis, in place where kernels can take them so.
fn part(buffers: *Buffers, whole: *const Tensor, axis: usize, start: i64, size: i64) Error!Tensor {
    var found = whole.*;
    found.shape[axis] = size;
    const rows: Rows = .of(whole, axis);
    const from: usize = @intCast(start);
    const data = whole.bytes();
    if (rows.outer == 1 and (from * rows.inner) % abi.alignment == 0) {
        found.data = whole.data.? + from * rows.inner;
        return found.hold();
    }
    found = try values.make(buffers, whole.dtype, found.extents());
    const to = found.bytes();
    if (to.len == 0) return found;
    const stride = @as(usize, @intCast(whole.shape[axis])) * rows.inner;
    const taken = @as(usize, @intCast(size)) * rows.inner;
    for (0..rows.outer) |row| @memcpy(to[row * taken ..][0..taken], data[row * stride + from * rows.inner ..][0..taken]);
    return found;
}

/// Concatenate along an axis, or along a new one.
pub fn join(buffers: *Buffers, list: List, said: i64, is_new: bool) Error!Tensor {
    const parts = list.items();
    if (parts.len == 0) return refused("a list with something in it", "an empty one, to concatenate", .{});
    const first = &parts[0];
    const axis = try axisOf(said, first.rank + @intFromBool(is_new));
    var shape: [abi.max_rank + 1]i64 = undefined;
    const rank = first.rank + @intFromBool(is_new);
    @memcpy(shape[0..axis], first.shape[0..axis]);
    @memcpy(shape[axis + @intFromBool(is_new) .. rank], first.shape[axis..first.rank]);
    shape[axis] = 0;
    for (parts) |*item| {
        const fits = item.rank == first.rank and item.dtype.equals(first.dtype) and for (item.extents(), first.extents(), 0..) |a, b, at| {
            if (a != b and (is_new or at != axis)) break false;
        } else true;
        if (!fits) return refused("arrays that go together", "a list of arrays that cannot be concatenated", .{});
        shape[axis] +|= if (is_new) 1 else item.shape[axis];
    }
    const found = try values.make(buffers, first.dtype, shape[0..rank]);
    const to = found.bytes();
    if (to.len == 0) return found;
    const rows: Rows = .of(&found, axis);
    const stride = @as(usize, @intCast(shape[axis])) * rows.inner;
    var at: usize = 0;
    for (parts) |*item| {
        const taken = if (is_new) rows.inner else @as(usize, @intCast(item.shape[axis])) * rows.inner;
        const data = item.bytes();
        for (0..rows.outer) |row| @memcpy(to[row * stride + at ..][0..taken], data[row * taken ..][0..taken]);
        at += taken;
    }
    return found;
}
