//! <math.h> for kernels that are linked into an image: an object of its own, taken where one of them is called.
const math = @import("math.zig");

pub const panic = @import("std").debug.no_panic;

comptime {
    for (math.symbols) |symbol| @export(symbol.address, .{ .name = symbol.name, .linkage = .weak, .visibility = .hidden });
}
