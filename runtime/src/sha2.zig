//! SHA-256 and SHA-512, FIPS 180-4, of words of 32 and 64 bits: small code, for what no instructions are there for.
const std = @import("std");

pub const Sha256 = Sha2(u32, 64, .{ .{ 2, 13, 22 }, .{ 6, 11, 25 }, .{ 7, 18, 3 }, .{ 17, 19, 10 } });
pub const Sha512 = Sha2(u64, 80, .{ .{ 28, 34, 39 }, .{ 14, 18, 41 }, .{ 1, 8, 7 }, .{ 19, 61, 6 } });

/// `turns`: by how much the words are rotated in the four functions of 4.1.2 and 4.1.3; the last of the latter two shifts.
fn Sha2(comptime Word: type, comptime rounds: comptime_int, comptime turns: [4][3]comptime_int) type {
    return struct {
        pub const block_size = 16 * @sizeOf(Word);
        pub const size = 8 * @sizeOf(Word);
        const constants = roots(Word, 3, rounds);

        /// The digest of a block, if any, and of what follows it.
        pub fn hash(first: ?*const [block_size]u8, data: []const u8) [size]u8 {
            var state = roots(Word, 2, 8);
            if (first) |block| compress(&state, block);
            var left = data;
            while (left.len >= block_size) : (left = left[block_size..]) compress(&state, left[0..block_size]);
            var last: [block_size]u8 = @splat(0);
            @memcpy(last[0..left.len], left);
            last[left.len] = 0x80;
            if (left.len >= block_size - 2 * @sizeOf(Word)) {
                compress(&state, &last);
                last = @splat(0);
            }
            const total = data.len + if (first == null) 0 else @as(usize, block_size);
            std.mem.writeInt(u64, last[block_size - 8 ..], 8 * @as(u64, total), .big);
            compress(&state, &last);
            for (&state) |*word| word.* = std.mem.nativeToBig(Word, word.*);
            return std.mem.asBytes(&state).*;
        }

        noinline fn compress(state: *[8]Word, block: *const [block_size]u8) void {
            var words: [16]Word = undefined;
            for (&words, 0..) |*word, at| word.* = std.mem.readInt(Word, block[at * @sizeOf(Word) ..][0..@sizeOf(Word)], .big);
            var v = state.*;
            var round: usize = 0;
            while (round < rounds) : (round += 8) {
                const half = words[round % 16 ..][0..8];
                const next_constants = constants[round..][0..8];
                if (Word == u32) {
                    inline for (half, next_constants, 0..) |word, constant, index| turn(&v, index, word +% constant);
                } else for (half, next_constants, 0..) |word, constant, index| turn(&v, index, word +% constant);
                for (half, 0..) |*word, index| {
                    const at = round + index;
                    word.* +%= mix(words[(at + 1) % 16], 2) +% words[(at + 9) % 16] +% mix(words[(at + 14) % 16], 3);
                }
            }
            for (state, v) |*sum, word| sum.* +%= word;
        }

        /// One round. Instead of all words, their places move on.
        inline fn turn(v: *[8]Word, index: usize, added: Word) void {
            var p: [8]*Word = undefined;
            inline for (&p, 0..) |*place, at| place.* = &v[(at + 8 - index) % 8];
            const one = p[7].* +% mix(p[4].*, 1) +% (p[6].* ^ (p[4].* & (p[5].* ^ p[6].*))) +% added;
            p[3].* +%= one;
            p[7].* = one +% mix(p[0].*, 0) +% ((p[0].* & p[1].*) | (p[2].* & (p[0].* | p[1].*)));
        }

        inline fn mix(x: Word, comptime which: usize) Word {
            const by = turns[which];
            return std.math.rotr(Word, x, by[0]) ^ std.math.rotr(Word, x, by[1]) ^ if (which < 2) std.math.rotr(Word, x, by[2]) else x >> by[2];
        }
    };
}

/// The first bits of the fractions of roots of the first primes: what FIPS 180-4 takes its constants from, and BLAKE2 too.
pub fn roots(comptime Word: type, comptime degree: u3, comptime count: usize) [count]Word {
    return comptime found: {
        @setEvalBranchQuota(1 << 20);
        const bits = @bitSizeOf(Word);
        var found: [count]Word = undefined;
        var prime: u256 = 1;
        for (&found) |*item| {
            prime = next(prime);
            var root: u256 = 0;
            for (0..bits + 4) |bit| {
                const more = root + (1 << (bits + 3 - bit));
                var power: u256 = 1;
                for (0..degree) |_| power *= more;
                if (power <= prime << bits * @as(u8, degree)) root = more;
            }
            item.* = @truncate(root);
        }
        break :found found;
    };
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
