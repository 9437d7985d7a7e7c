//! Ed25519 as RFC 8032, 5.1.7, without the cofactor, over the standard library's field. Its own `verify` does the same some
//! times as fast with tables and unrolled code that take 30 KB; once for a model, half a millisecond is nothing.
const std = @import("std");
const Fe = std.crypto.ecc.Edwards25519.Fe;
const Sha512 = @import("sha2.zig").Sha512;
const order = std.crypto.ecc.Edwards25519.scalar.field_order;

/// Whether `key` signed the text, which has at most 256 bytes. All of it is public: the time that it takes varies.
pub fn verify(text: []const u8, signature: *const [64]u8, key: *const [32]u8) bool {
    const s = std.mem.readInt(u256, signature[32..64], .little);
    if (s >= order) return false;
    const a = Point.read(key) orelse return false;
    const r = Point.read(signature[0..32]) orelse return false;
    var times_eight = a;
    for (0..3) |_| times_eight = times_eight.add(&times_eight);
    if (times_eight.isZero()) return false; // of a low order: it signs more than one text
    var hashed: [64 + 256]u8 = undefined;
    hashed[0..32].* = signature[0..32].*;
    hashed[32..64].* = key.*;
    @memcpy(hashed[64..][0..text.len], text);
    const k = reduced(std.mem.readInt(u512, &Sha512.hash(null, hashed[0 .. 64 + text.len]), .little));
    const base: Point = comptime .of(std.crypto.ecc.Edwards25519.basePoint);
    const minus_a = a.negated();
    var found: Point = .zero; // s B - k A, a bit at a time
    var bit: u9 = 256;
    while (bit > 0) {
        bit -= 1;
        found = found.add(&found);
        if (s >> @intCast(bit) & 1 != 0) found = found.add(&base);
        if (k >> @intCast(bit) & 1 != 0) found = found.add(&minus_a);
    }
    return found.add(&r.negated()).isZero();
}

/// The remainder by the order of the base.
fn reduced(number: u512) u256 {
    var rest: u256 = 0;
    var bit: u10 = 512;
    while (bit > 0) {
        bit -= 1;
        rest = 2 * rest + @as(u1, @truncate(number >> @intCast(bit)));
        if (rest >= order) rest -= order;
    }
    return rest;
}

/// In extended coordinates: section 5.1.4.
const Point = struct {
    x: Fe,
    y: Fe,
    z: Fe,
    t: Fe,

    const zero: Point = .{ .x = .zero, .y = .one, .z = .one, .t = .zero };

    fn of(comptime given: std.crypto.ecc.Edwards25519) Point {
        return .{ .x = given.x, .y = given.y, .z = given.z, .t = given.t };
    }

    /// Section 5.1.3.
    noinline fn read(encoded: *const [32]u8) ?Point {
        const prime = (1 << 255) - 19;
        if (@as(u255, @truncate(std.mem.readInt(u256, encoded, .little))) >= prime) return null;
        const y: Fe = .fromBytes(encoded.*);
        const squared = product(&y, &y);
        const u = difference(&squared, &.one);
        const v = sum(&product(&squared, &.edwards25519d), &.one);
        const v3 = product(&product(&v, &v), &v);
        var x = product(&product(&u, &v3), &power(&product(&product(&u, &v3), &product(&v3, &v))));
        const check = product(&v, &product(&x, &x));
        if (!check.equivalent(u)) {
            if (!sum(&check, &u).isZero()) return null;
            x = product(&x, &.sqrtm1);
        }
        const is_negative = encoded[31] >> 7 != 0;
        if (x.isZero() and is_negative) return null;
        if (x.isNegative() != is_negative) x = difference(&.zero, &x);
        return .{ .x = x, .y = y, .z = .one, .t = product(&x, &y) };
    }

    fn negated(point: *const Point) Point {
        return .{ .x = difference(&.zero, &point.x), .y = point.y, .z = point.z, .t = difference(&.zero, &point.t) };
    }

    fn isZero(point: *const Point) bool {
        return point.x.isZero() and point.y.equivalent(point.z);
    }

    noinline fn add(p: *const Point, q: *const Point) Point {
        const a = product(&difference(&p.y, &p.x), &difference(&q.y, &q.x));
        const b = product(&sum(&p.y, &p.x), &sum(&q.y, &q.x));
        const c = product(&product(&p.t, &q.t), &.edwards25519d2);
        const half = product(&p.z, &q.z);
        const d = sum(&half, &half);
        const e = difference(&b, &a);
        const f = difference(&d, &c);
        const g = sum(&d, &c);
        const h = sum(&b, &a);
        return .{ .x = product(&e, &f), .y = product(&g, &h), .z = product(&f, &g), .t = product(&e, &h) };
    }
};

noinline fn product(a: *const Fe, b: *const Fe) Fe {
    return @call(.always_inline, Fe.mul, .{ a.*, b.* });
}

noinline fn sum(a: *const Fe, b: *const Fe) Fe {
    return @call(.always_inline, Fe.add, .{ a.*, b.* });
}

noinline fn difference(a: *const Fe, b: *const Fe) Fe {
    return @call(.always_inline, Fe.sub, .{ a.*, b.* });
}

/// To the power of 2^252 - 3.
fn power(base: *const Fe) Fe {
    var found = base.*;
    for (0..251) |step| {
        found = product(&found, &found);
        if (step != 249) found = product(&found, base);
    }
    return found;
}
