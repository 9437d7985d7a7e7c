//! What `gcm.zig` asks of a CPU, for those without instructions for it, in constant time: AES on the bits of eight blocks
//! at once, and products of polynomials by those of numbers.
const std = @import("std");

const Block = @Vector(2, u64);

/// AES-256 of at most eight blocks. The bits of all their bytes that have the same value lie in one register, byte by byte,
/// a bit for each block: E. Kasper, P. Schwabe, "Faster and Timing-Attack Resistant AES-GCM" (2009).
pub noinline fn cipher(_: comptime_int, blocks: []Block, keys: []const Block) void {
    var planes: [8]Block = @splat(@splat(0));
    for (planes[0..blocks.len], blocks) |*plane, block| plane.* = block;
    transpose(&planes);
    addKey(&planes, keys[0]);
    for (keys[1..], 1..) |key, round| {
        substitute(&planes);
        for (&planes) |*plane| plane.* = shiftedRows(plane.*);
        if (round != keys.len - 1) mixColumns(&planes);
        addKey(&planes, key);
    }
    transpose(&planes);
    for (planes[0..blocks.len], blocks) |plane, *block| block.* = plane;
}

pub fn substituted(word: u32) u32 {
    var planes: [8]Block = @splat(@splat(0));
    planes[0][0] = word;
    transpose(&planes);
    substitute(&planes);
    transpose(&planes);
    return @truncate(planes[0][0]);
}

/// Exchange bit i of register j with bit j of register i, in each byte.
noinline fn transpose(planes: *[8]Block) void {
    inline for (.{ 1, 2, 4 }, .{ 0x55, 0x33, 0x0f }) |by, mask| for (0..8) |index| {
        if (index & by != 0) continue;
        const changed = (planes[index] >> @splat(by) ^ planes[index + by]) & all(mask);
        planes[index + by] ^= changed;
        planes[index] ^= changed << @splat(by);
    };
}

fn all(byte: u64) Block {
    return @splat(byte * 0x01010101_01010101);
}

fn addKey(planes: *[8]Block, key: Block) void {
    var left = key;
    for (planes) |*plane| {
        const bits = left & all(1);
        plane.* ^= (bits << @splat(8)) -% bits;
        left >>= @splat(1);
    }
}

/// A row is a byte of each word of 32 bits, a column; those of row n come from n columns further.
fn shiftedRows(plane: Block) Block {
    const row: Block = @splat(0x000000ff_000000ff);
    const two = Block{ plane[1], plane[0] };
    const one = plane >> @splat(32) | two << @splat(32);
    const three = plane << @splat(32) | two >> @splat(32);
    return (plane & row) | (one & row << @splat(8)) | (two & row << @splat(16)) | (three & row << @splat(24));
}

/// FIPS 197, 5.1.3: with the sum t of a byte and the next, and that after it, doubled t + next + t two further.
fn mixColumns(planes: *[8]Block) void {
    var sums: [8]Block = undefined;
    for (&sums, planes) |*sum, *plane| {
        const further = turned(plane.*, 8);
        sum.* = plane.* ^ further;
        plane.* = further;
    }
    for (planes, sums, 0..) |*plane, sum, bit| {
        plane.* ^= turned(sum, 16);
        if (bit > 0) plane.* ^= sums[bit - 1];
        if (@as(u8, 0x1b) >> @intCast(bit) & 1 != 0) plane.* ^= sums[7];
    }
}

/// Rotate each word of 32 bits.
fn turned(plane: Block, comptime by: u6) Block {
    const kept: Block = @splat((1 << 32 - by) * 0x00000001_00000001 - 0x00000001_00000001);
    return (plane >> @splat(by) & kept) | (plane << @splat(32 - by) & ~kept);
}

/// The S-box, of 115 gates: J. Boyar, R. Peralta, "A depth-16 circuit for the AES S-box" (2012). `!` is the complement of
/// a sum; u0 is the highest bit.
const gates =
    \\y14=u3+u5 y13=u0+u6 y9=u0+u3 y8=u0+u5 t0=u1+u2 y1=t0+u7 y4=y1+u3 y12=y13+y14 y2=y1+u0 y5=y1+u6 y3=y5+y8 t1=u4+y12
    \\y15=t1+u5 y20=t1+u1 y6=y15+u7 y10=y15+t0 y11=y20+y9 y7=u7+y11 y17=y10+y11 y19=y10+y8 y16=t0+y11 y21=y13+y16 y18=u0+y16
    \\t2=y12*y15 t3=y3*y6 t4=t3+t2 t5=y4*u7 t6=t5+t2 t7=y13*y16 t8=y5*y1 t9=t8+t7 t10=y2*y7 t11=t10+t7 t12=y9*y11
    \\t13=y14*y17 t14=t13+t12 t15=y8*y10 t16=t15+t12 t17=t4+t14 t18=t6+t16 t19=t9+t14 t20=t11+t16 t21=t17+y20 t22=t18+y19
    \\t23=t19+y21 t24=t20+y18 t25=t21+t22 t26=t21*t23 t27=t24+t26 t28=t25*t27 t29=t28+t22 t30=t23+t24 t31=t22+t26
    \\t32=t31*t30 t33=t32+t24 t34=t23+t33 t35=t27+t33 t36=t24*t35 t37=t36+t34 t38=t27+t36 t39=t29*t38 t40=t25+t39
    \\t41=t40+t37 t42=t29+t33 t43=t29+t40 t44=t33+t37 t45=t42+t41 z0=t44*y15 z1=t37*y6 z2=t33*u7 z3=t43*y16 z4=t40*y1
    \\z5=t29*y7 z6=t42*y11 z7=t45*y17 z8=t41*y10 z9=t44*y12 z10=t37*y3 z11=t33*y4 z12=t43*y13 z13=t40*y5 z14=t29*y2
    \\z15=t42*y9 z16=t45*y14 z17=t41*y8 t46=z15+z16 t47=z10+z11 t48=z5+z13 t49=z9+z10 t50=z2+z12 t51=z2+z5 t52=z7+z8
    \\t53=z0+z3 t54=z6+z7 t55=z16+z17 t56=z12+t48 t57=t50+t53 t58=z4+t46 t59=z3+t54 t60=t46+t57 t61=z14+t57 t62=t52+t58
    \\t63=t49+t58 t64=z4+t59 t65=t61+t62 t66=z1+t63 s0=t59+t63 s6=t56!t62 s7=t48!t60 t67=t64+t65 s3=t53+t66 s4=t51+t66
    \\s5=t47+t65 s1=t64!s3 s2=t55!t67
;

noinline fn substitute(planes: *[8]Block) void {
    @setEvalBranchQuota(1 << 20);
    var values: ['z' + 1][68]Block = undefined;
    inline for (0..8) |index| values['u'][index] = planes[7 - index];
    comptime var words = std.mem.tokenizeAny(u8, gates, " \n");
    inline while (comptime words.next()) |gate| {
        const equal, const sign = comptime .{ std.mem.indexOfScalar(u8, gate, '=').?, std.mem.indexOfAny(u8, gate, "+*!").? };
        const a, const b = .{ value(&values, gate[equal + 1 .. sign]).*, value(&values, gate[sign + 1 ..]).* };
        value(&values, gate[0..equal]).* = switch (gate[sign]) {
            '*' => a & b,
            '+' => a ^ b,
            else => ~(a ^ b),
        };
    }
    inline for (0..8) |index| planes[7 - index] = values['s'][index];
}

inline fn value(values: *['z' + 1][68]Block, comptime name: []const u8) *Block {
    return &values[name[0]][comptime std.fmt.parseInt(usize, name[1..], 10) catch unreachable];
}

pub fn low(_: comptime_int, a: Block, b: Block) Block {
    return product(a[0], b[0]);
}

pub fn high(_: comptime_int, a: Block, b: Block) Block {
    return product(a[1], b[1]);
}

/// With both other products in it: A. Karatsuba's way.
pub fn cross(_: comptime_int, a: Block, b: Block) Block {
    return product(a[0] ^ a[1], b[0] ^ b[1]);
}

/// Every fourth bit of both at a time, so that sums of 15 bits stay below the next one: T. Pornin, "Constant-Time
/// Multiplication" (BearSSL). Of the four lowest bits of `b`, which would be the sixteenth, each alone.
noinline fn product(a: u64, b: u64) Block {
    const holes: u128 = 0x11111111_11111111_11111111_11111111;
    var sum: u128 = 0;
    inline for (0..4) |bit| sum ^= @as(u128, a) << bit & 0 -% @as(u128, b >> bit & 1);
    inline for (0..4) |place| {
        var part: u128 = 0;
        inline for (0..4) |one| {
            const other = (place + 4 - one) % 4;
            const x, const y = .{ a & 0x1111_1111_1111_1111 << one, b & 0x1111_1111_1111_1110 << other };
            part ^= @as(u128, x) * y;
        }
        sum ^= part & holes << place;
    }
    return @bitCast(sum);
}
