//! Which instructions this CPU has, by the words of Linux's /proc/cpuinfo. On aarch64 and riscv64 by the bits that the
//! kernel passes: an emulator shows the file of its host.
const std = @import("std");
const builtin = @import("builtin");
const message = @import("message.zig");
const platform = @import("platform.zig");
const Error = message.Error;
const getauxval = platform.getauxval;

const arm_first = [_][]const u8{ "fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp", "asimdhp", "cpuid", "asimdrdm", "jscvt", "fcma", "lrcpc", "dcpop", "sha3", "sm3", "sm4", "asimddp", "sha512", "sve", "asimdfhm" };

/// Null where nobody says.
pub fn has(flag: []const u8) ?bool {
    switch (builtin.cpu.arch) {
        .aarch64 => {
            const first = getauxval(std.elf.AT.HWCAP);
            const second = getauxval(std.elf.AT.HWCAP2);
            for (arm_first, 0..) |name, bit| if (std.mem.eql(u8, name, flag)) return first >> @intCast(bit) & 1 == 1;
            if (std.mem.eql(u8, flag, "sve2")) return second >> 1 & 1 == 1;
            if (std.mem.eql(u8, flag, "i8mm")) return second >> 13 & 1 == 1;
            if (std.mem.eql(u8, flag, "bf16")) return second >> 14 & 1 == 1;
            return false;
        },
        .riscv64 => {
            if (flag.len != 1 or flag[0] < 'a' or flag[0] > 'z') return false;
            return getauxval(std.elf.AT.HWCAP) >> @intCast(flag[0] - 'a') & 1 == 1;
        },
        else => return inFile(flag),
    }
}

fn inFile(flag: []const u8) ?bool {
    var buffer: [8192]u8 = undefined;
    const said = platform.readSome("/proc/cpuinfo", &buffer);
    const start = std.mem.indexOf(u8, said, "\nflags") orelse return null;
    const line = std.mem.sliceTo(said[start + 1 ..], '\n');
    var words = std.mem.tokenizeAny(u8, line, " \t:");
    while (words.next()) |word| if (std.mem.eql(u8, word, flag)) return true;
    return false;
}

/// Forms of `crypto.zig`, each for CPUs with more instructions than the one before; `wide` has `wide.zig` beside `fast`.
pub const Form = enum { portable, fast, wide };
pub const has_fast = builtin.cpu.arch == .x86_64 or builtin.cpu.arch == .aarch64;
pub const has_wide = builtin.cpu.arch == .x86_64;

/// Which of them runs here.
pub fn cryptography() Form {
    switch (builtin.cpu.arch) {
        .x86_64 => return x86Form(),
        .aarch64 => {
            for ([_][]const u8{ "aes", "pmull", "sha2" }) |flag| if (!(has(flag) orelse false)) return .portable;
            return .fast;
        },
        else => return .portable,
    }
}

const Leaf = struct { a: u32, b: u32, c: u32 };

fn cpuid(leaf: u32) Leaf {
    var a: u32 = undefined;
    var b: u32 = undefined;
    var c: u32 = undefined;
    var d: u32 = undefined;
    asm volatile ("cpuid"
        : [a] "={eax}" (a),
          [b] "={ebx}" (b),
          [c] "={ecx}" (c),
          [d] "={edx}" (d),
        : [leaf] "{eax}" (leaf),
          [part] "{ecx}" (@as(u32, 0)),
    );
    return .{ .a = a, .b = b, .c = c };
}

/// Whether the digests of `fast`, too, run here: CPUs that have all else may lack instructions for SHA.
pub fn hasDigests() bool {
    if (cryptography() == .portable) return false;
    return builtin.cpu.arch != .x86_64 or all(cpuid(7).b, bits(&.{29}));
}

/// The registers that the system keeps for a process.
fn kept() u32 {
    return asm volatile ("xgetbv"
        : [low] "={eax}" (-> u32),
        : [which] "{ecx}" (@as(u32, 0)),
        : .{ .rdx = true });
}

/// Asks the CPU itself: an emulator has fewer instructions than the file says. Bits are Intel's manual's, volume 2, CPUID.
fn x86Form() Form {
    const pclmulqdq_fma_movbe_aes_osxsave_avx_f16c = bits(&.{ 1, 12, 22, 25, 27, 28, 29 });
    const bmi_avx2_bmi2 = bits(&.{ 3, 5, 8 });
    const avx512_f_dq_cd_bw_vl = bits(&.{ 16, 17, 28, 30, 31 });
    const vaes_vpclmulqdq = bits(&.{ 9, 10 });
    const lzcnt = bits(&.{5});
    const ymm = bits(&.{ 1, 2 });
    const zmm = bits(&.{ 1, 2, 5, 6, 7 });
    if (cpuid(0).a < 7 or !all(cpuid(1).c, pclmulqdq_fma_movbe_aes_osxsave_avx_f16c)) return .portable;
    const more = cpuid(7);
    if (!all(more.b, bmi_avx2_bmi2) or !all(cpuid(0x80000001).c, lzcnt) or !all(kept(), ymm)) return .portable;
    return if (all(more.b, avx512_f_dq_cd_bw_vl) and all(more.c, vaes_vpclmulqdq) and all(kept(), zmm)) .wide else .fast;
}

fn bits(comptime numbers: []const u5) u32 {
    var found: u32 = 0;
    for (numbers) |number| found |= @as(u32, 1) << number;
    return found;
}

fn all(found: u32, wanted: u32) bool {
    return found & wanted == wanted;
}

/// Ask the system for AMX's tile registers, for this process and its threads: without, their use ends the process.
pub fn askForTiles() Error!void {
    const arch_request_permission = 0x1023; // asm/prctl.h
    const tile_data = 18;
    const refused = std.os.linux.errno(std.os.linux.syscall2(.arch_prctl, arch_request_permission, tile_data));
    if (refused != .SUCCESS) return message.fail(error.Machine, "library: expected a system that lets processes use AMX's tiles, which it was compiled for (Linux 5.16), found one that refuses them\nfix: compile the model with compile.amx=false", .{});
}
