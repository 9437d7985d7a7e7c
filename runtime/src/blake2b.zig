//! BLAKE2b without a key, RFC 7693.
const std = @import("std");

const iv = @import("sha2.zig").roots(u64, 2, 8);
/// SIGMA, section 2.7: the message's words in the order of each round, a digit each, the first one last.
const orders = [10]u64{ 0xfedcba9876543210, 0x357b20c16df984ae, 0x491763eadf250c8b, 0x8f04a562ebcd1397, 0xd386cb1efa427509, 0x91ef57d438b0a6c2, 0xb8293670a4def15c, 0xa2684f05931ce7bd, 0x5a417d2c803b9ef6, 0x0dc3e9bf5167482a };

pub const Blake2b = struct {
    state: [8]u64 = iv,
    buffer: [128]u8 align(8) = undefined,
    used: usize = 0,
    total: u64 = 0,

    /// For a digest of so many bytes, 64 at most.
    pub fn init(size: usize) Blake2b {
        var hash: Blake2b = .{};
        hash.state[0] ^= 0x01010000 ^ size;
        return hash;
    }

    pub noinline fn add(hash: *Blake2b, bytes: []const u8) void {
        for (bytes) |byte| {
            if (hash.used == hash.buffer.len) hash.compress(false);
            hash.buffer[hash.used] = byte;
            hash.used += 1;
        }
    }

    pub fn addNumber(hash: *Blake2b, number: usize) void {
        hash.add(&std.mem.toBytes(@as(u32, @intCast(number))));
    }

    pub noinline fn finish(hash: *Blake2b, digest: []u8) void {
        @memset(hash.buffer[hash.used..], 0);
        hash.compress(true);
        @memcpy(digest, std.mem.asBytes(&hash.state)[0..digest.len]);
    }

    noinline fn compress(hash: *Blake2b, is_last: bool) void {
        hash.total += hash.used;
        hash.used = 0;
        const words: *const [16]u64 = @ptrCast(&hash.buffer);
        var v: [16]u64 = hash.state ++ iv;
        v[12] ^= hash.total;
        if (is_last) v[14] = ~v[14];
        for (0..12) |round| {
            var order = orders[round % 10];
            for (0..8) |index| { // columns, then diagonals
                const turn = index / 4;
                const a = &v[index % 4];
                const b = &v[4 + (index + turn) % 4];
                const c = &v[8 + (index + 2 * turn) % 4];
                const d = &v[12 + (index + 3 * turn) % 4];
                inline for (.{ 32, 16 }, .{ 24, 63 }) |one, two| {
                    a.* +%= b.* +% words[@intCast(order & 15)];
                    order >>= 4;
                    d.* = std.math.rotr(u64, d.* ^ a.*, one);
                    c.* +%= d.*;
                    b.* = std.math.rotr(u64, b.* ^ c.*, two);
                }
            }
        }
        for (&hash.state, v[0..8], v[8..]) |*word, x, y| word.* ^= x ^ y;
    }
};
