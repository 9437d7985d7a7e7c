//! The ciphers and digests of docs/format.md. Which instructions they use is chosen when it is compiled: this file is
//! compiled twice where a CPU may have some for them, and `sealed.zig` takes one of them when it runs.
const std = @import("std");
const builtin = @import("builtin");
const argon2 = @import("argon2.zig");

pub const panic = std.debug.no_panic;

const form: enum { portable, fast } = switch (builtin.cpu.arch) {
    .x86_64 => if (builtin.cpu.has(.x86, .sha)) .fast else .portable,
    .aarch64 => if (builtin.cpu.has(.aarch64, .sha2)) .fast else .portable,
    else => .portable,
};

comptime {
    const name = @tagName(form);
    @export(&sha256, .{ .name = "forge_sha256_" ++ name, .visibility = .hidden });
    @export(&decrypt, .{ .name = "forge_decrypt_" ++ name, .visibility = .hidden });
    @export(&argon2.mix, .{ .name = "forge_mix_" ++ name, .visibility = .hidden });
    if (form == .portable) { // once: instructions make no difference to them
        @export(&verify, .{ .name = "forge_verify_portable", .visibility = .hidden });
        @export(&derive, .{ .name = "forge_derive_portable", .visibility = .hidden });
    }
}

/// The digest of a block, if any, and what follows it. The standard library's uses instructions for SHA where there are any.
fn sha256(first: ?*const [64]u8, data: [*]const u8, size: usize, digest: *[32]u8) callconv(.c) void {
    if (form == .portable) {
        digest.* = @import("sha2.zig").Sha256.hash(first, data[0..size]);
        return;
    }
    var hash: std.crypto.hash.sha2.Sha256 = .init(.{});
    if (first) |block| hash.update(block);
    hash.update(data[0..size]);
    hash.final(digest);
}

/// As `gcm.zig` says.
fn decrypt(to: [*]u8, from: [*]const u8, size: usize, associated: [*]const u8, associated_size: usize, nonce: *const [12]u8, key: *const [32]u8) callconv(.c) bool {
    return @import("gcm.zig").Gcm(1, 8).decrypt(to, from, size, associated[0..associated_size], nonce, key);
}

/// As `ed25519.zig` says.
fn verify(data: [*]const u8, size: usize, signature: *const [64]u8, key: *const [32]u8) callconv(.c) bool {
    return @import("ed25519.zig").verify(data[0..size], signature, key);
}

/// As `argon2.zig` says.
fn derive(out: *[64]u8, memory: [*]argon2.Block, kib: u32, password: [*]const u8, password_size: usize, salt: *const [16]u8, passes: u32, lanes: u32, mix: *const argon2.Mix) callconv(.c) void {
    argon2.derive(out, memory[0..kib], password[0..password_size], salt, passes, lanes, mix);
}
