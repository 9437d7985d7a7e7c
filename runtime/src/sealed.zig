//! The encrypted model and its key file (docs/format.md): everything is checked before anything is used.
const std = @import("std");
const cpu = @import("cpu.zig");
const message = @import("message.zig");
const platform = @import("platform.zig");
const Error = message.Error;

pub const magic = "\x89MLENC\r\n";
const header_size = 96;
const tag_size = 16;

const Digest = fn (?*const [64]u8, [*]const u8, usize, *[32]u8) callconv(.c) void;
const Decrypt = fn ([*]u8, [*]const u8, usize, [*]const u8, usize, *const [12]u8, *const [32]u8) callconv(.c) bool;
const Mix = fn (*anyopaque, *const anyopaque, *const anyopaque, bool) callconv(.c) void;
extern fn forge_derive_portable(*[64]u8, [*]u8, u32, [*]const u8, usize, *const [16]u8, u32, u32, *const Mix) void;

/// `crypto.zig` and `wide.zig`, as compiled for CPUs that have more or fewer instructions.
fn compiled(comptime Function: type, comptime name: []const u8) *const Function {
    return @extern(*const Function, .{ .name = name });
}

fn chosen(comptime Function: type, comptime name: []const u8) *const Function {
    const form: cpu.Form = if (Function == Digest and !cpu.hasDigests()) .portable else cpu.cryptography();
    if (cpu.has_wide and Function == Decrypt and form == .wide) return compiled(Function, name ++ "_wide");
    if (cpu.has_fast and form != .portable) return compiled(Function, name ++ "_fast");
    return compiled(Function, name ++ "_portable");
}

pub fn sha256(data: []const u8) [32]u8 {
    return digestOf(null, data);
}

pub noinline fn hasDigest(data: []const u8, digest: []const u8) bool {
    return std.mem.eql(u8, &sha256(data), digest);
}

noinline fn digestOf(first: ?*const [64]u8, data: []const u8) [32]u8 {
    var digest: [32]u8 = undefined;
    chosen(Digest, "forge_sha256")(first, data.ptr, data.len, &digest);
    return digest;
}

/// HMAC-SHA-256: RFC 2104.
noinline fn mac(key: *const [32]u8, data: []const u8) [32]u8 {
    var block: [64]u8 = @splat(0x36);
    for (block[0..32], key) |*byte, secret| byte.* ^= secret;
    const inner = digestOf(&block, data);
    for (&block) |*byte| byte.* ^= 0x36 ^ 0x5c;
    return digestOf(&block, &inner);
}

/// The first 32 bytes of HKDF's second step: RFC 5869, 2.3.
fn expanded(key: *const [32]u8, info: anytype) [32]u8 {
    return mac(key, &(info.* ++ [_]u8{1}));
}

/// Decrypt all but the tag that follows it to `to`, which may lie before `from`, and reach into it.
fn decrypt(to: [*]u8, from: []const u8, associated: []const u8, nonce: *const [12]u8, key: *const [32]u8) bool {
    return chosen(Decrypt, "forge_decrypt")(to, from.ptr, from.len - tag_size, associated.ptr, associated.len, nonce, key);
}

fn number(comptime T: type, at: []const u8) T {
    return std.mem.readInt(T, at[0..@sizeOf(T)], .big);
}

const Costs = struct { kib: u32, passes: u32, lanes: u32 };

/// What is secret while a model is opened: one page, locked, wiped at the end.
const Secrets = struct { derived: [64]u8, wrapped: [48]u8, extracted: [32]u8, header_key: [32]u8, payload_key: [32]u8 };

/// Turn an encrypted model, in place, to its plaintext, at the start of the same memory; return that. `file` is the
/// caller's and hidden (`platform.hide`). After an error it holds what the caller must wipe, and nothing that may be used.
pub fn open(file: []u8, key_file: []const u8, password: []const u8, limit: usize) Error![]u8 {
    defer wipeStack();
    return opened(file, key_file, password, limit);
}

/// Never a part of `open`, whose own frame is not wiped: copies of keys lie in this one.
noinline fn opened(file: []u8, key_file: []const u8, password: []const u8, limit: usize) Error![]u8 {
    const header = try headerSize(file);
    const costs = try keyCosts(key_file, file);
    if (@as(usize, costs.kib) << 10 > limit)
        return message.fail(error.Memory, "key file: expected a key derivation within {d} KiB, what this device gives for it, found one that takes {d} KiB\nfix: free some memory, raise max_kdf_bytes, or encrypt the model with less encrypt.kdf.memory_kib", .{ limit >> 10, costs.kib });
    const page = try platform.map(@sizeOf(Secrets));
    defer platform.wipe(page);
    platform.hide(page);
    const secrets: *Secrets = @ptrCast(@alignCast(page.ptr));
    try unwrap(secrets, key_file, password, costs);
    const data_key = secrets.wrapped[0..32];
    const salt = file[32..64];
    secrets.extracted = mac(salt, data_key);
    secrets.header_key = expanded(&secrets.extracted, "mlenc/v1/header");
    const found = mac(&secrets.header_key, file[0 .. header - 32]);
    if (!std.crypto.timing_safe.eql([32]u8, found, file[header - 32 ..][0..32].*)) return altered("its header");
    const info = "mlenc/v1/payload".* ++ sha256(file[0..header]);
    secrets.payload_key = expanded(&secrets.extracted, &info);
    return decryptChunks(file, header, &secrets.payload_key);
}

/// Overwrite what the functions that were called left on the stack: keys, and what was made of them.
noinline fn wipeStack() void {
    var room: [16 << 10]u8 = undefined;
    std.crypto.secureZero(u8, &room);
}

fn decryptChunks(file: []u8, header: usize, key: *const [32]u8) Error![]u8 {
    const chunk = @as(usize, 1) << @intCast(file[12]);
    const total: usize = @intCast(number(u64, file[24..]));
    const count = @max(1, (total + chunk - 1) / chunk);
    var from = header;
    for (0..count) |index| {
        const size = @min(chunk, total - index * chunk);
        var nonce: [12]u8 = @splat(0);
        std.mem.writeInt(u64, nonce[3..11], index, .big);
        nonce[11] = @intFromBool(index + 1 == count);
        if (!decrypt(file[index * chunk ..].ptr, file[from..][0 .. size + tag_size], "", &nonce, key)) return altered("its contents");
        from += size + tag_size;
    }
    return file[0..total];
}

fn altered(what: []const u8) Error {
    return message.fail(error.Damaged, "encrypted model: expected {s} as sealed, found that bytes were altered or damaged\nfix: copy the file again from where it was built", .{what});
}

/// The length of the header, where all lengths account for the file.
fn headerSize(file: []const u8) Error!usize {
    const wrong = "encrypted model: expected version 1 with lengths that account for the file, found {s}\nfix: copy the file again from where it was built";
    if (file.len < header_size + 32 or !std.mem.eql(u8, file[0..8], magic)) return message.fail(error.Damaged, wrong, .{"another kind of file"});
    if (number(u16, file[8..]) != 1 or number(u16, file[10..]) != 1 or file[13] != 0 or number(u16, file[14..]) != 0) return message.fail(error.Damaged, wrong, .{"another version"});
    const metadata: u64 = number(u32, file[20..]);
    const total = number(u64, file[24..]);
    if (file[12] < 16 or file[12] > 22 or metadata > 32 << 10 or total > 64 << 30) return message.fail(error.Damaged, wrong, .{"lengths outside of the limits"});
    const chunk = @as(u64, 1) << @intCast(file[12]);
    const header = header_size + metadata + 32;
    const size = header + total + tag_size * @max(1, (total + chunk - 1) / chunk);
    if (number(u32, file[16..]) != header or file.len != size) return message.fail(error.Damaged, wrong, .{"a file that is cut off or longer"});
    return @intCast(header);
}

/// What the derivation costs; refused before anything is derived.
fn keyCosts(key: []const u8, file: []const u8) Error!Costs {
    const wrong = "key file: expected that of this model, version 1, found {s}\nfix: give the modelKey.bin that was delivered with the model";
    if (key.len != 164 or !std.mem.eql(u8, key[0..8], "\x89MLKEY\r\n")) return message.fail(error.Damaged, wrong, .{"another kind of file"});
    if (number(u16, key[8..]) != 1 or key[10] != 1 or key[11] != 1) return message.fail(error.Damaged, wrong, .{"another version"});
    const costs: Costs = .{ .kib = number(u32, key[12..]), .passes = number(u32, key[16..]), .lanes = number(u32, key[20..]) };
    if (costs.kib < 19 << 10 or costs.kib > 1 << 20 or costs.passes < 1 or costs.passes > 16 or costs.lanes < 1 or costs.lanes > 16 or @as(u64, costs.kib) * costs.passes > 1 << 20)
        return message.fail(error.Damaged, wrong, .{"costs outside of the limits"});
    if (!std.mem.eql(u8, key[40..72], file[64..96])) return message.fail(error.Damaged, wrong, .{"that of another model"});
    return costs;
}

fn unwrap(secrets: *Secrets, key: []const u8, password: []const u8, costs: Costs) Error!void {
    const memory = platform.map(@as(usize, costs.kib) << 10) catch
        return message.fail(error.Memory, "key file: expected a key derivation within the memory that this system gives, found one that takes {d} KiB\nfix: free some memory, or encrypt the model with less encrypt.kdf.memory_kib", .{costs.kib});
    forge_derive_portable(&secrets.derived, memory.ptr, costs.kib, password.ptr, password.len, key[24..40], costs.passes, costs.lanes, chosen(Mix, "forge_mix"));
    platform.wipe(memory);
    const wrong = "key file: expected the password that this key was made with, found Corrupted chunk encountered while decrypting the key, wrong password or corrupted key file\nfix: check the password; if it is right, copy modelKey.bin again from where the model was encrypted";
    const found = mac(secrets.derived[32..64], key[0..132]);
    if (!std.crypto.timing_safe.eql([32]u8, found, key[132..164].*)) return message.fail(error.Password, wrong, .{});
    secrets.wrapped = key[84..132].*;
    if (!decrypt(&secrets.wrapped, &secrets.wrapped, key[0..84], key[72..84], secrets.derived[0..32])) return message.fail(error.Password, wrong, .{});
}
