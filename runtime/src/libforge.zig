//! The root of `libforge`: the C interface for a process that has a C library, whose threads it uses.
const std = @import("std");

comptime {
    _ = @import("api.zig");
}

/// A check of the language that fails is a fault of this library; what would go on from there is not safe.
pub const panic = std.debug.no_panic;
pub const std_options_debug_io: std.Io = std.Io.failing;
pub const std_options: std.Options = .{ .signal_stack_size = null };
