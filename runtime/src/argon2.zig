//! Argon2id, version 1.3, as RFC 9106 has it, without a secret and associated data; lanes are filled one after the other.
const std = @import("std");
const Blake2b = @import("blake2b.zig").Blake2b;

const slices = 4;
/// 1 KiB, of 64 pairs of words.
pub const Block = [64]Pair;
const Pair = @Vector(2, u64);
const Four = @Vector(4, u64);
const zero: Block = @splat(@splat(0));

/// How two blocks are compressed to one, which may be one of them, or are added to what is there: what takes all the time.
pub const Mix = fn (to: *Block, a: *const Block, b: *const Block, is_added: bool) callconv(.c) void;

/// Derive from a password, in `memory`. It must be wiped: it tells of the password.
pub fn derive(out: *[64]u8, memory: []Block, password: []const u8, salt: *const [16]u8, passes: u32, lanes: u32, compress: *const Mix) void {
    const segment = memory.len / (slices * lanes);
    const filling: Filling = .{ .blocks = memory[0 .. slices * segment * lanes], .segment = segment, .length = slices * segment, .passes = passes, .lanes = lanes, .compress = compress };
    var seed: [72]u8 = undefined;
    var first: Blake2b = .init(64);
    const version = 0x13;
    const type_id = 2;
    for ([_]usize{ lanes, out.len, memory.len, passes, version, type_id, password.len }) |value| first.addNumber(value);
    first.add(password);
    first.addNumber(salt.len);
    first.add(salt);
    first.addNumber(0);
    first.addNumber(0);
    first.finish(seed[0..64]);
    for (0..lanes) |lane| for (0..2) |column| {
        std.mem.writeInt(u32, seed[64..68], @intCast(column), .little);
        std.mem.writeInt(u32, seed[68..72], @intCast(lane), .little);
        long(std.mem.asBytes(&filling.blocks[lane * filling.length + column]), &seed);
    };
    for (0..passes) |pass| for (0..slices) |slice| for (0..lanes) |lane| filling.fill(pass, slice, lane);
    var last = filling.blocks[filling.length - 1];
    for (1..lanes) |lane| {
        for (&last, filling.blocks[(lane + 1) * filling.length - 1]) |*sum, pair| sum.* ^= pair;
    }
    long(out, std.mem.asBytes(&last));
}

/// The hash of any length, section 3.3.
noinline fn long(out: []u8, given: []const u8) void {
    var hash: Blake2b = .init(@min(out.len, 64));
    hash.addNumber(out.len);
    hash.add(given);
    var left = out;
    while (left.len > 64) {
        var digest: [64]u8 = undefined;
        hash.finish(&digest);
        @memcpy(left[0..32], digest[0..32]);
        left = left[32..];
        hash = .init(@min(left.len, 64));
        hash.add(&digest);
    }
    hash.finish(left);
}

const Filling = struct {
    blocks: []Block,
    /// Blocks of a slice of a lane, and of a lane.
    segment: usize,
    length: usize,
    passes: u32,
    lanes: u32,
    compress: *const Mix,

    /// Fill a lane's part of a slice, section 3.4.
    fn fill(filling: *const Filling, pass: usize, slice: usize, lane: usize) void {
        const is_independent = pass == 0 and slice < slices / 2;
        var input = zero;
        input[0..3].* = .{ .{ pass, lane }, .{ slice, filling.blocks.len }, .{ filling.passes, 2 } };
        var addresses: Block = undefined;
        const start = lane * filling.length;
        for (0..filling.segment) |index| {
            if (is_independent and index % 128 == 0) {
                input[3][0] += 1;
                filling.compress(&addresses, &input, &zero, false);
                filling.compress(&addresses, &addresses, &zero, false);
            }
            const column = slice * filling.segment + index;
            if (pass == 0 and column < 2) continue;
            const before = &filling.blocks[start + (if (column == 0) filling.length else column) - 1];
            const words: *const [128]u64 = @ptrCast(if (is_independent) &addresses else before);
            const random = words[if (is_independent) index % 128 else 0];
            const other = if (pass == 0 and slice == 0) lane else (random >> 32) % filling.lanes;
            var count = if (pass == 0) slice * filling.segment else filling.length - filling.segment;
            if (other == lane) count += index;
            if (other == lane or index == 0) count -= 1;
            const squared = (random & 0xffffffff) * (random & 0xffffffff) >> 32;
            const oldest = if (pass == 0) 0 else (slice + 1) * filling.segment;
            const place = (oldest + count - 1 - (count * squared >> 32)) % filling.length;
            filling.compress(&filling.blocks[start + column], before, &filling.blocks[other * filling.length + place], pass != 0);
        }
    }
};

/// Section 3.5.
pub fn mix(to: *Block, a: *const Block, b: *const Block, is_added: bool) callconv(.c) void {
    var state: Block = undefined;
    for (&state, a, b) |*pair, x, y| pair.* = x ^ y;
    const given = state;
    for (0..8) |row| permute(state[8 * row ..], 1);
    for (0..8) |column| permute(state[column..], 8);
    for (to, given, state) |*pair, x, y| pair.* = x ^ y ^ if (is_added) pair.* else zero[0];
}

/// BLAKE2b's round without a message, and with products: section 3.6. Of eight pairs, each `step` after the one before.
inline fn permute(pairs: []Pair, comptime step: usize) void {
    var v: [4]Four = undefined;
    inline for (&v, 0..) |*four, at| four.* = @shuffle(u64, pairs[2 * at * step], pairs[(2 * at + 1) * step], [4]i32{ 0, 1, -1, -2 });
    inline for (.{ 1, 3 }) |by| {
        quarter(&v);
        inline for (v[1..], 1..) |*four, at| four.* = std.simd.rotateElementsLeft(four.*, by * at % 4);
    }
    inline for (v, 0..) |four, at| {
        pairs[2 * at * step] = .{ four[0], four[1] };
        pairs[(2 * at + 1) * step] = .{ four[2], four[3] };
    }
}

inline fn quarter(v: *[4]Four) void {
    inline for (.{ 32, 16 }, .{ 24, 63 }) |one, two| {
        v[0] = product(v[0], v[1]);
        v[3] = std.math.rotr(Four, v[3] ^ v[0], one);
        v[2] = product(v[2], v[3]);
        v[1] = std.math.rotr(Four, v[1] ^ v[2], two);
    }
}

inline fn product(x: Four, y: Four) Four {
    const low: Four = @splat(0xffffffff);
    return x +% y +% ((x & low) *% (y & low) << @splat(1));
}
