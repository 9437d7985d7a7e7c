//! AES-256-GCM, decrypting, by a CPU's instructions for rounds of AES and for products of polynomials, or by `sliced.zig`
//! where it has none: one pass over the data, several registers of several blocks each at once. No branch and no address
//! depends on a secret.
//!
//! Products are added before they are reduced: S. Gueron, M. Kounavis, "Intel Carry-Less Multiplication Instruction and its
//! Usage for Computing the GCM Mode" (2014). GHASH is POLYVAL with its bytes and its key turned, whose reduction is two
//! products by a constant: RFC 8452, appendix A. Registers of four blocks: N. Drucker, S. Gueron, V. Krasnov, "Making AES
//! Great Again: The Forthcoming Vectorized AES Instruction" (2018).
const std = @import("std");
const builtin = @import("builtin");
const sliced = @import("sliced.zig");

/// One block, as a little-endian number of its bytes in the opposite order where it is a polynomial.
const Block = @Vector(2, u64);
const zero: Block = @splat(0);
const rounds = 14;

/// Of `depth` registers, each of `lanes` blocks. Decrypt `size` bytes to `to`, which may be `from` or lie before it; the
/// tag follows them. False, with `to` of no meaning: they were altered, or the key is another.
pub fn Gcm(comptime lanes: comptime_int, comptime depth: comptime_int) type {
    return struct {
        const Wide = @Vector(2 * lanes, u64);
        const batch = 16 * lanes * depth;

        pub fn decrypt(to: [*]u8, from: [*]const u8, size: usize, associated: []const u8, nonce: *const [12]u8, key: *const [32]u8) bool {
            var state: State = undefined;
            defer std.crypto.secureZero(u8, std.mem.asBytes(&state));
            state.init(nonce, key);
            state.absorb(associated);
            var done: usize = 0;
            while (size - done >= batch) : (done += batch) state.step(to[done..][0..batch], from[done..][0..batch]);
            state.finish(to[done..size], from[done..size]);
            const sizes: Block = .{ 8 * @as(u64, size), 8 * @as(u64, associated.len) };
            const tag = swapped(1, multiplied(state.hash ^ sizes, state.power)) ^ state.mask;
            return @reduce(.Or, tag ^ at(Block, from + size).*) == 0;
        }

        const State = struct {
            keys: [rounds + 1]Block,
            /// The key of the hash, and its powers from `lanes` * `depth` down to 1.
            power: Block,
            powers: [depth]Wide,
            /// What the tag is covered with.
            mask: Block,
            hash: Block,
            /// The last counter that was used, with its bytes in the opposite order: its first word counts.
            counter: Block,

            fn init(state: *State, nonce: *const [12]u8, key: *const [32]u8) void {
                expand(@ptrCast(&state.keys), key);
                state.power = timesX(swapped(1, state.encrypted(@splat(0))));
                const powers: *[lanes * depth]Block = @ptrCast(&state.powers);
                var power = state.power;
                for (1..powers.len + 1) |exponent| {
                    powers[powers.len - exponent] = power;
                    power = multiplied(power, state.power);
                }
                state.counter = swapped(1, padded(nonce)) ^ Block{ 1, 0 };
                state.mask = state.encrypted(swapped(1, state.counter));
                state.hash = @splat(0);
            }

            noinline fn encrypted(state: *const State, block: Block) Block {
                var blocks = [_]Block{block};
                machine.cipher(1, &blocks, &state.keys);
                return blocks[0];
            }

            /// Add a part of the authenticated bytes, filled up with zeros.
            noinline fn absorb(state: *State, bytes: []const u8) void {
                var done: usize = 0;
                while (done < bytes.len) : (done += 16) state.add(padded(bytes[done..]));
            }

            noinline fn add(state: *State, block: Block) void {
                state.hash = multiplied(state.hash ^ swapped(1, block), state.power);
            }

            inline fn step(state: *State, to: *[batch]u8, from: *const [batch]u8) void {
                @setEvalBranchQuota(4000);
                var stream: [depth]Wide = undefined;
                const counters: Words(lanes) = @bitCast(repeated(lanes, state.counter));
                inline for (&stream, 0..) |*blocks, index| {
                    blocks.* = swapped(lanes, @bitCast(counters +% comptime ahead(lanes, 1 + lanes * index)));
                }
                state.counter = advanced(state.counter, lanes * depth);
                machine.cipher(lanes, &stream, &state.keys);
                var sums: Sums(lanes) = .{};
                inline for (stream, state.powers, 0..) |blocks, power, index| {
                    const given = at(Wide, from[16 * lanes * index ..]).*;
                    var term = swapped(lanes, given);
                    if (index == 0) term ^= first(state.hash);
                    sums.add(term, power);
                    @as(*align(1) Wide, @ptrCast(to[16 * lanes * index ..])).* = given ^ blocks;
                }
                state.hash = sums.reduced();
            }

            /// The blocks that are left, one by one, and the part of one.
            fn finish(state: *State, to: []u8, from: []const u8) void {
                var done: usize = 0;
                while (done < from.len) : (done += 16) {
                    const given = padded(from[done..]);
                    state.counter = advanced(state.counter, 1);
                    const plain = given ^ state.encrypted(swapped(1, state.counter));
                    state.add(given);
                    const size = @min(16, from.len - done);
                    @memcpy(to[done..][0..size], std.mem.asBytes(&plain)[0..size]);
                }
            }
        };

        /// The block, and zeros for the others.
        fn first(block: Block) Wide {
            const order = comptime order: {
                var places: [2 * lanes]i32 = @splat(-1);
                places[0..2].* = .{ 0, 1 };
                break :order places;
            };
            return @shuffle(u64, block, @as(Block, @splat(0)), order);
        }
    };
}

/// The keys of the rounds: FIPS 197, 5.2.
noinline fn expand(words: *[4 * (rounds + 1)]u32, key: *const [32]u8) void {
    @memcpy(std.mem.sliceAsBytes(words[0..8]), key);
    for (8..words.len) |index| {
        var word = words[index - 1];
        if (index % 4 == 0) word = machine.substituted(word);
        if (index % 8 == 0) word = std.math.rotr(u32, word, 8) ^ @as(u32, 1) << @intCast(index / 8 - 1);
        words[index] = words[index - 8] ^ word;
    }
}

fn Words(comptime lanes: comptime_int) type {
    return @Vector(4 * lanes, u32);
}

/// What is added to the counter of each block.
fn ahead(comptime lanes: comptime_int, from: u32) Words(lanes) {
    var words: [4 * lanes]u32 = @splat(0);
    for (0..lanes) |lane| words[4 * lane] = from + lane;
    return words;
}

fn advanced(counter: Block, count: u32) Block {
    return @bitCast(@as(Words(1), @bitCast(counter)) +% Words(1){ count, 0, 0, 0 });
}

/// The first bytes, at most a block of them, and zeros after them.
fn padded(bytes: []const u8) Block {
    var block: [16]u8 = @splat(0);
    const size = @min(16, bytes.len);
    @memcpy(block[0..size], bytes[0..size]);
    return at(Block, &block).*;
}

fn at(comptime Vector: type, bytes: [*]const u8) *align(1) const Vector {
    return @ptrCast(bytes);
}

inline fn repeated(comptime lanes: comptime_int, block: Block) @Vector(2 * lanes, u64) {
    const order = comptime order: {
        var places: [2 * lanes]i32 = undefined;
        for (&places, 0..) |*place, index| place.* = index % 2;
        break :order places;
    };
    return @shuffle(u64, block, undefined, order);
}

/// Each block with its bytes in the opposite order.
inline fn swapped(comptime lanes: comptime_int, blocks: @Vector(2 * lanes, u64)) @Vector(2 * lanes, u64) {
    if (machine == sliced) return .{ @byteSwap(blocks[1]), @byteSwap(blocks[0]) };
    const order = comptime order: {
        var places: [16 * lanes]i32 = undefined;
        for (&places, 0..) |*place, index| place.* = @intCast(index ^ 15);
        break :order places;
    };
    return @bitCast(@shuffle(u8, @as(@Vector(16 * lanes, u8), @bitCast(blocks)), undefined, order));
}

/// Products that are not reduced yet: of the lower halves, of the upper ones, and of both crosswise.
fn Sums(comptime lanes: comptime_int) type {
    return struct {
        const Wide = @Vector(2 * lanes, u64);
        low: Wide = @splat(0),
        cross: Wide = @splat(0),
        high: Wide = @splat(0),

        inline fn add(sums: *@This(), a: Wide, b: Wide) void {
            sums.low ^= machine.low(lanes, a, b);
            sums.cross ^= machine.cross(lanes, a, b);
            sums.high ^= machine.high(lanes, a, b);
        }

        /// The sum over the lanes, reduced.
        inline fn reduced(sums: @This()) Block {
            const low = folded(sums.low);
            const high = folded(sums.high);
            const cross = folded(sums.cross) ^ if (machine == sliced) low ^ high else zero;
            return high ^ Block{ cross[1], 0 } ^ halfReduced(halfReduced(low ^ Block{ 0, cross[0] }));
        }

        fn folded(wide: Wide) Block {
            var sum: Block = .{ wide[0], wide[1] };
            inline for (1..lanes) |lane| sum ^= Block{ wide[2 * lane], wide[2 * lane + 1] };
            return sum;
        }
    };
}

inline fn halfReduced(block: Block) Block {
    const polynomial: Block = .{ 0xc2000000_00000000, 0 };
    return Block{ block[1], block[0] } ^ machine.low(1, block, polynomial);
}

/// POLYVAL's product: that of both by x^-128.
noinline fn multiplied(a: Block, b: Block) Block {
    var sums: Sums(1) = .{};
    sums.add(a, b);
    return sums.reduced();
}

fn timesX(block: Block) Block {
    const number: u128 = @bitCast(block);
    const overflow: u128 = 0xc2000000_00000000_00000000_00000001;
    return @bitCast(number << 1 ^ (overflow & (0 -% (number >> 127))));
}

const machine = switch (builtin.cpu.arch) {
    .x86_64 => if (builtin.cpu.has(.x86, .aes)) x86 else sliced,
    .aarch64 => if (builtin.cpu.has(.aarch64, .aes)) arm else sliced,
    else => sliced,
};

const x86 = struct {
    fn Wide(comptime lanes: comptime_int) type {
        return @Vector(2 * lanes, u64);
    }

    inline fn cipher(comptime lanes: comptime_int, blocks: anytype, keys: *const [rounds + 1]Block) void {
        inline for (blocks) |*block| block.* ^= repeated(lanes, keys[0]);
        inline for (1..rounds + 1) |round| {
            const key = repeated(lanes, keys[round]);
            inline for (blocks) |*block| block.* = if (round < rounds) asm ("vaesenc %[key], %[state], %[out]"
                : [out] "=v" (-> Wide(lanes)),
                : [state] "v" (block.*),
                  [key] "v" (key),
            ) else asm ("vaesenclast %[key], %[state], %[out]"
                : [out] "=v" (-> Wide(lanes)),
                : [state] "v" (block.*),
                  [key] "v" (key),
            );
        }
    }

    /// Four equal columns are rows of equal bytes, which nothing turns.
    inline fn substituted(word: u32) u32 {
        return @as(Words(1), @bitCast(asm ("vaesenclast %[key], %[state], %[out]"
            : [out] "=x" (-> Block),
            : [state] "x" (@as(Words(1), @splat(word))),
              [key] "x" (@as(Block, @splat(0))),
        )))[0];
    }

    inline fn product(comptime lanes: comptime_int, a: Wide(lanes), b: Wide(lanes), comptime halves: []const u8) Wide(lanes) {
        return asm ("vpclmulqdq $" ++ halves ++ ", %[b], %[a], %[out]"
            : [out] "=v" (-> Wide(lanes)),
            : [a] "v" (a),
              [b] "v" (b),
        );
    }

    inline fn low(comptime lanes: comptime_int, a: Wide(lanes), b: Wide(lanes)) Wide(lanes) {
        return product(lanes, a, b, "0x00");
    }

    inline fn high(comptime lanes: comptime_int, a: Wide(lanes), b: Wide(lanes)) Wide(lanes) {
        return product(lanes, a, b, "0x11");
    }

    inline fn cross(comptime lanes: comptime_int, a: Wide(lanes), b: Wide(lanes)) Wide(lanes) {
        return product(lanes, a, b, "0x01") ^ product(lanes, a, b, "0x10");
    }
};

/// Registers of one block. A round adds its key first, and mixes columns last.
const arm = struct {
    inline fn cipher(_: comptime_int, blocks: anytype, keys: *const [rounds + 1]Block) void {
        inline for (0..rounds) |round| inline for (blocks) |*block| {
            block.* = if (round < rounds - 1) asm (
                \\aese %[out].16b, %[key].16b
                \\aesmc %[out].16b, %[out].16b
                : [out] "=&w" (-> Block),
                : [state] "0" (block.*),
                  [key] "w" (keys[round]),
            ) else asm ("aese %[out].16b, %[key].16b"
                : [out] "=&w" (-> Block),
                : [state] "0" (block.*),
                  [key] "w" (keys[round]),
            );
        };
        inline for (blocks) |*block| block.* ^= keys[rounds];
    }

    inline fn substituted(word: u32) u32 {
        return @as(Words(1), @bitCast(asm ("aese %[out].16b, %[key].16b"
            : [out] "=w" (-> Block),
            : [state] "0" (@as(Words(1), @splat(word))),
              [key] "w" (@as(Block, @splat(0))),
        )))[0];
    }

    inline fn low(_: comptime_int, a: Block, b: Block) Block {
        return asm ("pmull %[out].1q, %[a].1d, %[b].1d"
            : [out] "=w" (-> Block),
            : [a] "w" (a),
              [b] "w" (b),
        );
    }

    inline fn high(_: comptime_int, a: Block, b: Block) Block {
        return asm ("pmull2 %[out].1q, %[a].2d, %[b].2d"
            : [out] "=w" (-> Block),
            : [a] "w" (a),
              [b] "w" (b),
        );
    }

    inline fn cross(_: comptime_int, a: Block, b: Block) Block {
        const turned: Block = .{ b[1], b[0] };
        return low(1, a, turned) ^ high(1, a, turned);
    }
};
