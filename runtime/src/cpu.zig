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

/// Whether the fast form of `crypto.zig` runs here.
pub fn hasCryptography() bool {
    const needed: []const []const u8 = switch (builtin.cpu.arch) {
        .x86_64 => &.{ "avx2", "bmi1", "bmi2", "fma", "movbe", "aes", "pclmulqdq", "sha_ni" },
        .aarch64 => &.{ "aes", "pmull", "sha2" },
        else => return false,
    };
    for (needed) |flag| if (!(has(flag) orelse false)) return false;
    return true;
}

/// Ask the system for AMX's tile registers, for this process and its threads: without, their use ends the process.
pub fn askForTiles() Error!void {
    const arch_request_permission = 0x1023; // asm/prctl.h
    const tile_data = 18;
    const refused = std.os.linux.errno(std.os.linux.syscall2(.arch_prctl, arch_request_permission, tile_data));
    if (refused != .SUCCESS) return message.fail(error.Machine, "library: expected a system that lets processes use AMX's tiles, which it was compiled for (Linux 5.16), found {s}\nfix: compile the model with compile.amx=false", .{@tagName(refused)});
}
