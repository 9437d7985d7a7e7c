//! What kernels may call of the C library: <math.h> of C99, as `codegen/link.py` lists it. Functions of float compute in
//! double and round once, so that every machine gives the same; those of double are Zig's.
const std = @import("std");
const math = std.math;

pub const Symbol = struct { name: []const u8, address: *const anyopaque };

fn Unary(comptime T: type, comptime f: fn (f64) f64) type {
    return struct {
        fn call(x: T) callconv(.c) T {
            return @floatCast(f(x));
        }
    };
}

fn Binary(comptime T: type, comptime f: fn (f64, f64) f64) type {
    return struct {
        fn call(x: T, y: T) callconv(.c) T {
            return @floatCast(f(x, y));
        }
    };
}

const unary = struct {
    pub fn acos(x: f64) f64 { return math.acos(x); }
    pub fn acosh(x: f64) f64 { return math.acosh(x); }
    pub fn asin(x: f64) f64 { return math.asin(x); }
    pub fn asinh(x: f64) f64 { return math.asinh(x); }
    pub fn atan(x: f64) f64 { return math.atan(x); }
    pub fn atanh(x: f64) f64 { return math.atanh(x); }
    pub fn cbrt(x: f64) f64 { return math.cbrt(x); }
    pub fn ceil(x: f64) f64 { return @ceil(x); }
    pub fn cos(x: f64) f64 { return @cos(x); }
    pub fn cosh(x: f64) f64 { return math.cosh(x); }
    pub fn erf(x: f64) f64 { return if (@abs(x) < 2) erfSeries(x) else math.copysign(1 - erfcFraction(@abs(x)), x); }
    pub fn erfc(x: f64) f64 { return if (x < 2) 1 - erf(x) else erfcFraction(x); }
    pub fn exp(x: f64) f64 { return @exp(x); }
    pub fn exp2(x: f64) f64 { return powerOfTwo(x); }
    pub fn expm1(x: f64) f64 { return math.expm1(x); }
    pub fn fabs(x: f64) f64 { return @abs(x); }
    pub fn floor(x: f64) f64 { return @floor(x); }
    pub fn lgamma(x: f64) f64 { return math.lgamma(f64, x); }
    pub fn log(x: f64) f64 { return @log(x); }
    pub fn log10(x: f64) f64 { return @log10(x); }
    pub fn log1p(x: f64) f64 { return math.log1p(x); }
    pub fn log2(x: f64) f64 { return @log2(x); }
    pub fn nearbyint(x: f64) f64 { return toEven(x); }
    pub fn rint(x: f64) f64 { return toEven(x); }
    pub fn round(x: f64) f64 { return @round(x); }
    pub fn sin(x: f64) f64 { return @sin(x); }
    pub fn sinh(x: f64) f64 { return math.sinh(x); }
    pub fn sqrt(x: f64) f64 { return @sqrt(x); }
    pub fn tan(x: f64) f64 { return @tan(x); }
    pub fn tanh(x: f64) f64 { return math.tanh(x); }
    pub fn tgamma(x: f64) f64 { return math.gamma(f64, x); }
    pub fn trunc(x: f64) f64 { return @trunc(x); }
    pub fn logb(x: f64) f64 { return if (x == 0) -math.inf(f64) else if (!math.isFinite(x)) @abs(x) else @floatFromInt(math.ilogb(x)); }
};

const binary = struct {
    pub fn atan2(y: f64, x: f64) f64 { return math.atan2(y, x); }
    pub fn copysign(x: f64, y: f64) f64 { return math.copysign(x, y); }
    pub fn fdim(x: f64, y: f64) f64 { return if (math.isNan(x) or math.isNan(y)) math.nan(f64) else if (x > y) x - y else 0; }
    pub fn fmax(x: f64, y: f64) f64 { return @max(x, y); }
    pub fn fmin(x: f64, y: f64) f64 { return @min(x, y); }
    pub fn fmod(x: f64, y: f64) f64 { return fmodOf(x, y); }
    pub fn hypot(x: f64, y: f64) f64 { return math.hypot(x, y); }
    pub fn pow(x: f64, y: f64) f64 { return math.pow(f64, x, y); }
    pub fn remainder(x: f64, y: f64) f64 { return remainderOf(x, y); }
};

/// Zig's has a table of 4 KiB. What is left of `x` beside a whole number is exact, so that the one error more than that of
/// the exponential is a quarter of the last place.
fn powerOfTwo(x: f64) f64 {
    if (!(@abs(x) < 1100)) return @exp(x); // NaN, infinity or 0, as of any base
    const power = toEven(x);
    return math.ldexp(@exp((x - power) * math.ln2), @intFromFloat(power));
}

fn toEven(x: f64) f64 {
    const limit = 0x1p52; // above it every number is whole; adding it rounds, to even, as the CPU does
    if (!(@abs(x) < limit)) return x;
    return math.copysign((@abs(x) + limit) - limit, x);
}

fn fmodOf(x: f64, y: f64) f64 {
    if (y == 0 or !math.isFinite(x) or math.isNan(y)) return math.nan(f64);
    return if (math.isInf(y)) x else @rem(x, y);
}

fn remainderOf(x: f64, y: f64) f64 {
    if (y == 0 or !math.isFinite(x) or math.isNan(y)) return math.nan(f64);
    if (math.isInf(y)) return x;
    const d = @abs(y);
    var r = if (d <= math.floatMax(f64) / 2) @rem(@abs(x), 2 * d) else @abs(x);
    if (d < 0x1p-1021) {
        if (r + r > d) r -= d;
        if (r + r >= d) r -= d;
    } else {
        if (r > 0.5 * d) r -= d;
        if (r >= 0.5 * d) r -= d;
    }
    return math.copysign(@as(f64, 1), x) * r;
}

/// erf x = 2/sqrt(pi) exp(-x^2) sum of 2^n x^(2n+1) / (2n+1)!! (Abramowitz and Stegun 7.1.6): no cancellation.
fn erfSeries(x: f64) f64 {
    var term = x;
    var sum = x;
    var n: f64 = 1;
    while (@abs(term) > @abs(sum) * 0x1p-55) : (n += 1) {
        term *= 2 * x * x / (2 * n + 1);
        sum += term;
    }
    return 2.0 / @sqrt(@as(f64, math.pi)) * @exp(-x * x) * sum;
}

/// erfc x = exp(-x^2)/sqrt(pi) * 1/(x + 1/2/(x + 1/(x + 3/2/(x + ...)))) (Abramowitz and Stegun 7.1.14), for x >= 2.
fn erfcFraction(x: f64) f64 {
    if (math.isNan(x)) return x;
    if (x > 27.5) return 0;
    var fraction: f64 = x;
    var n: f64 = 80;
    while (n > 0) : (n -= 1) fraction = x + n / 2 / fraction;
    return @exp(-x * x) / @sqrt(@as(f64, math.pi)) / fraction;
}

fn Others(comptime T: type) type {
    return struct {
        fn fma(x: T, y: T, z: T) callconv(.c) T {
            return @mulAdd(T, x, y, z);
        }
        fn frexp(x: T, exponent: *c_int) callconv(.c) T {
            const parts = math.frexp(x);
            exponent.* = parts.exponent;
            return parts.significand;
        }
        fn ldexp(x: T, n: c_int) callconv(.c) T {
            return math.ldexp(x, n);
        }
        fn llrint(x: T) callconv(.c) i64 {
            return whole(toEven(x));
        }
        fn llround(x: T) callconv(.c) i64 {
            return whole(@round(@as(f64, x)));
        }
        fn modf(x: T, part: *T) callconv(.c) T {
            part.* = @trunc(x);
            return if (math.isInf(x)) math.copysign(@as(T, 0), x) else math.copysign(x - part.*, x);
        }
        fn nextafter(x: T, y: T) callconv(.c) T {
            return math.nextAfter(T, x, y);
        }
        fn sincos(x: T, sine: *T, cosine: *T) callconv(.c) void {
            sine.* = @floatCast(@sin(@as(f64, x)));
            cosine.* = @floatCast(@cos(@as(f64, x)));
        }
    };
}

fn whole(x: f64) i64 {
    return if (@abs(x) < 0x1p63) @intFromFloat(x) else math.minInt(i64);
}

/// Each by its name, and with the suffix `f` for float.
pub const symbols: []const Symbol = blk: {
    @setEvalBranchQuota(10_000);
    var list: []const Symbol = &.{};
    for (.{ f64, f32 }, .{ "", "f" }) |T, suffix| {
        for (@typeInfo(unary).@"struct".decl_names) |name| list = list ++ .{Symbol{ .name = name ++ suffix, .address = &Unary(T, @field(unary, name)).call }};
        for (@typeInfo(binary).@"struct".decl_names) |name| list = list ++ .{Symbol{ .name = name ++ suffix, .address = &Binary(T, @field(binary, name)).call }};
        const others = Others(T);
        list = list ++ .{
            Symbol{ .name = "fma" ++ suffix, .address = &others.fma },
            Symbol{ .name = "frexp" ++ suffix, .address = &others.frexp },
            Symbol{ .name = "ldexp" ++ suffix, .address = &others.ldexp },
            Symbol{ .name = "scalbn" ++ suffix, .address = &others.ldexp },
            Symbol{ .name = "llrint" ++ suffix, .address = &others.llrint },
            Symbol{ .name = "lrint" ++ suffix, .address = &others.llrint },
            Symbol{ .name = "llround" ++ suffix, .address = &others.llround },
            Symbol{ .name = "lround" ++ suffix, .address = &others.llround },
            Symbol{ .name = "modf" ++ suffix, .address = &others.modf },
            Symbol{ .name = "nextafter" ++ suffix, .address = &others.nextafter },
            Symbol{ .name = "sincos" ++ suffix, .address = &others.sincos },
        };
    }
    break :blk list;
};
