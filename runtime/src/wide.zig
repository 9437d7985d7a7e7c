//! AES-256-GCM in registers of four blocks: AVX-512 with VAES and VPCLMULQDQ.
const std = @import("std");

pub const panic = std.debug.no_panic;

fn decrypt(to: [*]u8, from: [*]const u8, size: usize, associated: [*]const u8, associated_size: usize, nonce: *const [12]u8, key: *const [32]u8) callconv(.c) bool {
    return @import("gcm.zig").Gcm(4, 4).decrypt(to, from, size, associated[0..associated_size], nonce, key);
}

comptime {
    @export(&decrypt, .{ .name = "forge_decrypt_wide", .visibility = .hidden });
}
