//! Who signed a file: an Ed25519 signature in OpenSSH's form (PROTOCOL.sshsig in its sources), as `forge-pipeline` and
//! `ssh-keygen -Y sign -n forge-release -O hashalg=sha256` make it. Of one kind of key, all its lengths are known.
const std = @import("std");
const message = @import("message.zig");
const platform = @import("platform.zig");
const sealed = @import("sealed.zig");
const Error = message.Error;

extern fn forge_verify_portable([*]const u8, usize, *const [64]u8, *const [32]u8) bool;

const kind = "ssh-ed25519";
const hash = field("forge-release") ++ field("") ++ field("sha256");
const key_head = field(kind) ++ length(32);
const before_digest = "SSHSIG" ++ hash ++ length(32);
const before_key = "SSHSIG" ++ length(1) ++ length(key_head.len + 32) ++ key_head;
const before_signature = hash ++ length(83) ++ field(kind) ++ length(64);
const blob_size = before_key.len + 32 + before_signature.len + 64;
const begin = "-----BEGIN SSH SIGNATURE-----";
const end = "-----END SSH SIGNATURE-----";
const limit = 4096;

/// Keys that are trusted, as lines of OpenSSH's .pub files, and a signature or where it is.
pub const Trust = struct {
    keys: []const u8,
    signature: ?[]const u8 = null,
    path: ?[*:0]const u8 = null,
    /// Of what is signed: its signature lies beside it unless another is named.
    signed: ?[*:0]const u8 = null,
};

fn length(comptime value: u32) []const u8 {
    return &std.mem.toBytes(std.mem.nativeToBig(u32, value));
}

fn field(comptime text: []const u8) []const u8 {
    return length(text.len) ++ text;
}

/// Refuse a file that none of the trusted keys signed, before anything of it is used.
pub fn check(file: []const u8, trust: Trust) Error!void {
    if (trust.signature) |text| return verify(file, trust.keys, text);
    var beside: [limit]u8 = undefined;
    const path = trust.path orelse path: {
        const name = std.mem.span(trust.signed orelse "");
        if (name.len + ".sig".len >= beside.len) return unsigned();
        @memcpy(beside[0..name.len], name);
        @memcpy(beside[name.len..][0..5], ".sig\x00");
        const path = beside[0 .. name.len + 4 :0].ptr;
        if (trust.signed == null or platform.isMissing(path)) return unsigned();
        break :path path;
    };
    const found = try platform.readFile(path, limit, null);
    defer platform.unmap(found.memory);
    return verify(file, trust.keys, found.memory[0..found.size]);
}

fn verify(file: []const u8, keys: []const u8, text: []const u8) Error!void {
    var blob: [blob_size]u8 = undefined;
    if (!decode(&blob, text)) return untrusted("a signature of another form or for another purpose");
    const key = blob[before_key.len..][0..32];
    if (!try isTrusted(keys, key)) return untrusted("a signature of a key that is none of them");
    const signed = before_digest[0..before_digest.len].* ++ sealed.sha256(file);
    if (!forge_verify_portable(&signed, signed.len, blob[blob_size - 64 ..], key)) return untrusted("a file that is not the one that was signed");
}

fn untrusted(comptime found: [:0]const u8) Error {
    return message.failIn(error.Untrusted, &.{ .head = "library: expected one that a trusted key signed, found ", .tail = "\nfix: take the file and its .sig (forge-pipeline sign) from who built it; trust a key only if you know whose it is" }, found, .{});
}

noinline fn unsigned() Error {
    return untrusted("a file without a signature");
}

fn decode(blob: *[blob_size]u8, text: []const u8) bool {
    const trimmed = std.mem.trim(u8, text, " \r\n");
    if (!std.mem.startsWith(u8, trimmed, begin) or !std.mem.endsWith(u8, trimmed, end) or trimmed.len < begin.len + end.len) return false;
    if (!decodeExactly(blob, trimmed[begin.len .. trimmed.len - end.len])) return false;
    return std.mem.startsWith(u8, blob, before_key) and std.mem.eql(u8, blob[before_key.len + 32 ..][0..before_signature.len], before_signature);
}

/// Decode base64 without padding at its end, over any number of lines, to exactly so many bytes. (The standard library's
/// decoder has tables of 4 KB.)
fn decodeExactly(into: []u8, text: []const u8) bool {
    var size: usize = 0;
    var bits: u32 = 1; // a one, before those that were read
    for (text) |character| {
        const value: u32 = switch (character) {
            'A'...'Z' => character - 'A',
            'a'...'z' => character - 'a' + 26,
            '0'...'9' => character - '0' + 52,
            '+' => 62,
            '/' => 63,
            '\n', '\r' => continue,
            else => return false,
        };
        bits = bits << 6 | value;
        if (bits < 1 << 24) continue;
        if (size + 3 > into.len) return false;
        std.mem.writeInt(u24, into[size..][0..3], @truncate(bits), .big);
        size += 3;
        bits = 1;
    }
    return size == into.len and bits == 1;
}

/// Read every line, so that one that is no key is told whatever the others are.
fn isTrusted(keys: []const u8, wanted: *const [32]u8) Error!bool {
    var is_found = false;
    var count: usize = 0;
    var lines = std.mem.tokenizeAny(u8, keys, "\r\n");
    while (lines.next()) |line| {
        if (line[0] == '#') continue;
        var words = std.mem.tokenizeAny(u8, line, " \t");
        const name = words.next() orelse continue;
        var blob: [key_head.len + 32]u8 = undefined;
        const is_key = std.mem.eql(u8, name, kind) and decodeExactly(&blob, words.next() orelse "") and std.mem.startsWith(u8, &blob, key_head);
        if (!is_key) return message.fail(error.Usage, "trusted keys: expected lines of OpenSSH's form, ssh-ed25519 AAAA..., found another one\nfix: give the .pub file of an Ed25519 key", .{});
        is_found = is_found or std.mem.eql(u8, blob[key_head.len..], wanted);
        count += 1;
    }
    if (count == 0) return message.fail(error.Usage, "trusted keys: expected at least one, found none\nfix: give the .pub file of an Ed25519 key, or do without trusted keys", .{});
    return is_found;
}
