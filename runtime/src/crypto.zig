//! The ciphers and digests of docs/format.md, by Zig's standard library, and by `gcm.zig` where a CPU has instructions for
//! it. They are chosen when it is compiled: this file is compiled twice where a CPU may have some, and `sealed.zig` takes
//! one of them when it runs.
const std = @import("std");
const builtin = @import("builtin");
const crypto = std.crypto;

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
    @export(&derive, .{ .name = "forge_derive_" ++ name, .visibility = .hidden });
    // Once: it takes a fraction of a millisecond either way.
    if (form == .portable) @export(&verify, .{ .name = "forge_verify_portable", .visibility = .hidden });
}

fn sha256(data: [*]const u8, size: usize, digest: *[32]u8) callconv(.c) void {
    crypto.hash.sha2.Sha256.hash(data[0..size], digest, .{});
}

/// As `gcm.zig` says.
fn decrypt(to: [*]u8, from: [*]const u8, size: usize, associated: [*]const u8, associated_size: usize, nonce: *const [12]u8, key: *const [32]u8) callconv(.c) bool {
    if (form == .fast) return @import("gcm.zig").Gcm(1, 8).decrypt(to, from, size, associated[0..associated_size], nonce, key);
    const tag = from[size..][0..16].*;
    @memmove(to[0..size], from[0..size]);
    crypto.aead.aes_gcm.Aes256Gcm.decrypt(to[0..size], to[0..size], tag, associated[0..associated_size], nonce.*, key.*) catch return false;
    return true;
}

/// As `ed25519.zig` says.
fn verify(data: [*]const u8, size: usize, signature: *const [64]u8, key: *const [32]u8) callconv(.c) bool {
    return @import("ed25519.zig").verify(data[0..size], signature, key);
}

const Allocator = std.mem.Allocator;

/// Pages that are overwritten before they are given back: what Argon2 fills them with tells of the password.
const wiping: Allocator = .{ .ptr = undefined, .vtable = &.{
    .alloc = std.heap.PageAllocator.vtable.alloc,
    .resize = Allocator.noResize,
    .remap = Allocator.noRemap,
    .free = wipe,
} };

fn wipe(context: *anyopaque, memory: []u8, alignment: std.mem.Alignment, from: usize) void {
    crypto.secureZero(u8, memory);
    std.heap.PageAllocator.vtable.free(context, memory, alignment, from);
}

/// Argon2id; the lanes one after the other. False: no memory.
fn derive(out: *[64]u8, password: [*]const u8, password_size: usize, salt: *const [16]u8, kib: u32, passes: u32, lanes: u32) callconv(.c) bool {
    const costs: crypto.pwhash.argon2.Params = .{ .t = passes, .m = kib, .p = @intCast(lanes) };
    crypto.pwhash.argon2.kdf(wiping, out, password[0..password_size], salt, costs, .argon2id, std.Io.failing) catch return false;
    return true;
}
