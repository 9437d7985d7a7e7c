//! What compiled kernels and their caller agree on: TVM's calling convention (tvm-ffi 0.1.14) and DLPack 1, on a
//! little-endian machine of 64 or 32 bits.
const builtin = @import("builtin");

pub const Dtype = extern struct {
    code: u8,
    bits: u8,
    lanes: u16,

    /// Bytes of one element: types of less than a byte take a whole one.
    pub fn width(dtype: Dtype) u64 {
        return (@as(u64, dtype.bits) * dtype.lanes + 7) / 8;
    }

    pub fn equals(a: Dtype, b: Dtype) bool {
        return a.code == b.code and a.bits == b.bits and a.lanes == b.lanes;
    }
};

pub const max_rank = 8;
pub const device_cpu = 1;
/// Kernels load and store whole vectors: every tensor begins on such a boundary.
pub const alignment = 64;

/// DLPack's DLTensor; rows lie without gaps.
pub const Tensor = extern struct {
    data: ?[*]u8 = null,
    device_type: i32 = device_cpu,
    device_id: i32 = 0,
    rank: i32,
    dtype: Dtype,
    shape: [*]i64,
    strides: ?[*]i64 = null,
    byte_offset: u64 = 0,
};

pub const Any = extern struct {
    type: i32,
    zero: u32 = 0,
    value: extern union { integer: i64, pointer: ?*anyopaque },

    pub fn integer(value: i64) Any {
        return .{ .type = 1, .value = .{ .integer = value } };
    }

    pub fn tensor(value: *Tensor) Any {
        return .{ .type = 7, .value = .{ .pointer = value } };
    }

    pub fn of(any: Any) ?*const Tensor {
        return if (any.type == 7) @ptrCast(@alignCast(any.value.pointer)) else null;
    }
};

pub const Kernel = *const fn (self: ?*anyopaque, arguments: [*]const Any, count: i32, result: *Any) callconv(.c) c_int;

pub const Group = extern struct { sync: ?*anyopaque, tasks: i32 };
pub const Task = *const fn (index: i32, group: *Group, data: ?*anyopaque) callconv(.c) c_int;

comptime {
    if (@sizeOf(Tensor) != (if (@sizeOf(usize) == 8) 48 else 40) or @sizeOf(Any) != 16) @compileError("another layout than TVM's");
    if (builtin.cpu.arch.endian() != .little) @compileError("the program's words are little-endian");
}
