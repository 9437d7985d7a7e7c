//! Ed25519 as RFC 8032, 5.1.7, without the cofactor, over the standard library's curve. Its own `verify` does the same four
//! times as fast with tables and an unrolled SHA-512 that take 14 KB; once for a model, half a millisecond is nothing.
const std = @import("std");
const Curve = std.crypto.ecc.Edwards25519;

/// Whether `key` signed the text, which has at most 256 bytes. All of it is public: the time that it takes varies.
pub fn verify(text: []const u8, signature: *const [64]u8, key: *const [32]u8) bool {
    const s = signature[32..64].*;
    Curve.scalar.rejectNonCanonical(s) catch return false;
    const a = point(key) orelse return false;
    const r = point(signature[0..32]) orelse return false;
    a.rejectLowOrder() catch return false;
    var hashed: [64 + 256]u8 = undefined;
    hashed[0..32].* = signature[0..32].*;
    hashed[32..64].* = key.*;
    @memcpy(hashed[64..][0..text.len], text);
    const k = Curve.scalar.reduce64(sha512(hashed[0 .. 64 + text.len]));
    var sum = Curve.identityElement; // s B - k A, a bit at a time
    var bit: u9 = 256;
    while (bit > 0) {
        bit -= 1;
        sum = sum.dbl();
        if (isSet(&s, bit)) sum = sum.add(Curve.basePoint);
        if (isSet(&k, bit)) sum = sum.sub(a);
    }
    const difference = sum.sub(r);
    return difference.x.isZero() and difference.y.equivalent(difference.z);
}

fn point(encoded: *const [32]u8) ?Curve {
    Curve.rejectNonCanonical(encoded.*) catch return null;
    return Curve.fromBytes(encoded.*) catch null;
}

fn isSet(number: *const [32]u8, bit: u9) bool {
    return (number[bit / 8] >> @intCast(bit % 8)) & 1 != 0;
}

/// FIPS 180-4, 6.4. The text has at most 320 bytes.
fn sha512(text: []const u8) [64]u8 {
    var room: [3 * 128]u8 = @splat(0);
    @memcpy(room[0..text.len], text);
    room[text.len] = 0x80;
    const end = (text.len + 17 + 127) / 128 * 128;
    std.mem.writeInt(u64, room[end - 8 ..][0..8], text.len * 8, .big);
    var state = comptime roots(2, 8);
    var at: usize = 0;
    while (at < end) : (at += 128) compress(&state, room[at..][0..128]);
    var digest: [64]u8 = undefined;
    for (state, 0..) |word, index| std.mem.writeInt(u64, digest[index * 8 ..][0..8], word, .big);
    return digest;
}

fn compress(state: *[8]u64, block: *const [128]u8) void {
    const constants = comptime roots(3, 80);
    var words: [80]u64 = undefined;
    for (0..16) |t| words[t] = std.mem.readInt(u64, block[t * 8 ..][0..8], .big);
    for (16..80) |t| words[t] = words[t - 16] +% mix(words[t - 15], 1, 8, 7, true) +% words[t - 7] +% mix(words[t - 2], 19, 61, 6, true);
    var v = state.*;
    for (words, constants) |word, constant| {
        const one = v[7] +% mix(v[4], 14, 18, 41, false) +% ((v[4] & v[5]) ^ (~v[4] & v[6])) +% constant +% word;
        const two = mix(v[0], 28, 34, 39, false) +% ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        const turned = [8]u64{ one +% two, v[0], v[1], v[2], v[3] +% one, v[4], v[5], v[6] };
        v = turned;
    }
    for (state, v) |*sum, word| sum.* +%= word;
}

fn mix(x: u64, first: u6, second: u6, third: u6, comptime is_shift: bool) u64 {
    return std.math.rotr(u64, x, first) ^ std.math.rotr(u64, x, second) ^ (if (is_shift) x >> third else std.math.rotr(u64, x, third));
}

/// The first 64 bits of the fractions of roots of the first primes: what FIPS 180-4 takes its constants from.
fn roots(comptime degree: u3, comptime count: usize) [count]u64 {
    @setEvalBranchQuota(1 << 20);
    var found: [count]u64 = undefined;
    var prime: u256 = 1;
    for (&found) |*item| {
        prime = next(prime);
        var root: u256 = 0;
        for (0..68) |bit| {
            const more = root + (1 << (67 - bit));
            var power: u256 = 1;
            for (0..degree) |_| power *= more;
            if (power <= prime << 64 * @as(u8, degree)) root = more;
        }
        item.* = @truncate(root);
    }
    return found;
}

fn next(prime: u256) u256 {
    var candidate = prime + 1;
    search: while (true) : (candidate += 1) {
        var divisor: u256 = 2;
        while (divisor * divisor <= candidate) : (divisor += 1) {
            if (candidate % divisor == 0) continue :search;
        }
        return candidate;
    }
}
