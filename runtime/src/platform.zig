//! The operating system: memory, files, time and sleeping, by Linux's system calls alone. No libc.
const std = @import("std");
const builtin = @import("builtin");
const linux = std.os.linux;
const message = @import("message.zig");
const Error = message.Error;

pub const page = 4096; // the smallest there is; what needs the real one asks `pageSize`
pub const Memory = []align(page) u8;
const huge = 2 << 20;

/// What the system passed to the process. Zig's own function knows nothing where a C library started it.
pub const getauxval = if (builtin.link_libc) struct {
    extern "c" fn getauxval(index: usize) usize;
}.getauxval else linux.getauxval;

pub fn pageSize() usize {
    return @max(page, getauxval(std.elf.AT.PAGESZ));
}

fn failed(result: usize) bool {
    return linux.errno(result) != .SUCCESS;
}

/// Zeroed memory of its own; in large pages where there are any: a model is more pages than a CPU has entries for.
pub fn map(size: usize) Error!Memory {
    const length = std.mem.alignForward(usize, @max(size, 1), pageSize());
    const result = linux.mmap(null, length, .{ .READ = true, .WRITE = true }, .{ .TYPE = .PRIVATE, .ANONYMOUS = true }, -1, 0);
    if (failed(result)) return message.fail(error.Memory, "memory: expected {d} bytes, found less\nfix: free memory, or take a smaller model", .{size});
    const start: [*]align(page) u8 = @ptrFromInt(result);
    if (length >= huge) _ = linux.madvise(start, length, linux.MADV.HUGEPAGE);
    return start[0..length];
}

pub fn unmap(memory: []align(page) const u8) void {
    if (memory.len != 0) _ = linux.munmap(memory.ptr, memory.len);
}

pub const Access = enum { read, execute };

pub fn protect(memory: []align(page) const u8, access: Access) Error!void {
    const result = linux.mprotect(memory.ptr, memory.len, .{ .READ = true, .EXEC = access == .execute });
    if (failed(result)) return message.fail(error.Machine, "memory: expected that code may be loaded from it, found that this system refuses\nfix: allow the process executable memory", .{});
}

/// Memory for a plaintext: not swapped where the limit of locked memory allows, in no core dump.
pub fn hide(memory: Memory) void {
    _ = linux.mlock(memory.ptr, memory.len);
    _ = linux.madvise(memory.ptr, memory.len, linux.MADV.DONTDUMP);
}

/// Give the contents back to the system, overwritten first where they are secret: the memory stays, of zeros.
pub fn discard(memory: Memory, is_secret: bool) void {
    if (is_secret) {
        if (failed(linux.mprotect(memory.ptr, memory.len, .{ .READ = true, .WRITE = true }))) return;
        std.crypto.secureZero(u8, memory);
        _ = linux.munlock(memory.ptr, memory.len);
        _ = linux.mprotect(memory.ptr, memory.len, .{ .READ = true });
    }
    _ = linux.madvise(memory.ptr, memory.len, linux.MADV.DONTNEED);
}

/// Overwrite and give back what `hide` was told of.
pub fn wipe(memory: Memory) void {
    if (memory.len == 0) return;
    _ = linux.mprotect(memory.ptr, memory.len, .{ .READ = true, .WRITE = true });
    std.crypto.secureZero(u8, memory);
    unmap(memory);
}

pub const File = struct { memory: Memory, size: usize };

/// Make what only the start of this program writes, its pointers to functions, read-only: a static program has no loader
/// that does.
pub fn protectPointers() void {
    const table: usize = linux.getauxval(std.elf.AT.PHDR);
    const rows = @as([*]const std.elf.Elf64.Phdr, @ptrFromInt(table))[0..linux.getauxval(std.elf.AT.PHNUM)];
    const base = for (rows) |row| {
        if (row.type == .PHDR) break table -% @as(usize, @intCast(row.vaddr));
    } else return;
    for (rows) |row| {
        if (row.type != std.elf.PT.GNU_RELRO) continue;
        const start = std.mem.alignBackward(usize, base +% @as(usize, @intCast(row.vaddr)), pageSize());
        const end = std.mem.alignBackward(usize, base +% @as(usize, @intCast(row.vaddr + row.memsz)), pageSize());
        if (start < end) _ = linux.mprotect(@ptrFromInt(start), end - start, .{ .READ = true });
    }
}

/// The artifact that is a segment of this very program (`packaging/executable.py`): its table of segments then lies at
/// the start of that segment, with a mark before the artifact.
pub fn attached() ?[]align(64) const u8 {
    const room = 4096;
    const mark = "FORGEART";
    const table: usize = getauxval(std.elf.AT.PHDR);
    if (table == 0 or table % room != 0) return null;
    const rows = @as([*]const std.elf.Elf64.Phdr, @ptrFromInt(table))[0..getauxval(std.elf.AT.PHNUM)];
    const segment = @as([*]align(64) const u8, @ptrFromInt(table));
    const size: usize = @intCast(rows[rows.len - 1].filesz);
    return if (size >= room and std.mem.eql(u8, segment[room - mark.len .. room], mark)) segment[room..size] else null;
}

/// Memory of this process's own with the same bytes.
pub fn copy(bytes: []const u8) Error!File {
    const memory = try map(bytes.len);
    @memcpy(memory[0..bytes.len], bytes);
    return .{ .memory = memory, .size = bytes.len };
}

/// Looks at the first and the last bytes of a file, and its size, before there is memory for it.
pub const Look = *const fn (first: []const u8, last: []const u8, size: usize) Error!void;

/// Whether there is no file of that name; one that cannot be looked at is there.
pub fn isMissing(path: [*:0]const u8) bool {
    return linux.errno(linux.access(path, linux.F_OK)) == .NOENT;
}

/// Read a whole file into memory of this process, where nobody else can change it.
pub fn readFile(path: [*:0]const u8, limit: usize, look: ?Look) Error!File {
    // A pipe must not block.
    const opened = linux.open(path, .{ .ACCMODE = .RDONLY, .CLOEXEC = true, .NONBLOCK = true }, 0);
    if (failed(opened)) return unreadable(path, reason(opened));
    const file: i32 = @intCast(opened);
    defer _ = linux.close(file);
    var status: linux.Statx = undefined;
    if (failed(linux.statx(file, "", linux.AT.EMPTY_PATH, .{ .TYPE = true, .SIZE = true }, &status))) return unreadable(path, "one without a size");
    if (status.mode & linux.S.IFMT != linux.S.IFREG) return unreadable(path, "something else than a regular file");
    const end: usize = @intCast(status.size);
    if (end > limit) return tooLarge(path, end, limit);
    if (look) |see| {
        var first: [16]u8 = undefined;
        var last: [96]u8 = undefined;
        const size = @min(end, last.len);
        const got = linux.pread(file, &first, @min(end, first.len), 0);
        const ended = linux.pread(file, &last, size, @intCast(end - size));
        if (failed(got) or failed(ended)) return unreadable(path, "one that cannot be read");
        try see(first[0..got], last[0..ended], end);
    }
    const memory = try map(end);
    var at: usize = 0;
    while (at < end) {
        const got = linux.read(file, memory.ptr + at, @min(end - at, 1 << 30));
        if (linux.errno(got) == .INTR) continue;
        if (failed(got) or got == 0) {
            unmap(memory);
            return unreadable(path, if (failed(got)) reason(got) else "an end before its end");
        }
        at += got;
    }
    return .{ .memory = memory, .size = end };
}

/// Read standard input to its end, into memory that is in no dump.
pub fn readInput(limit: usize) Error!File {
    const memory = try map(limit);
    hide(memory);
    var at: usize = 0;
    while (at < limit) {
        const got = linux.read(0, memory.ptr + at, limit - at);
        if (linux.errno(got) == .INTR) continue;
        if (failed(got)) {
            wipe(memory);
            return unreadable("standard input", reason(got));
        }
        if (got == 0) return .{ .memory = memory, .size = at };
        at += got;
    }
    wipe(memory);
    return unreadable("standard input", "more than a password");
}

pub fn tooLarge(where: [*:0]const u8, size: usize, limit: usize) Error {
    return message.fail(error.File, "{s}: expected at most {d} bytes, what this device gives for it, found {d} bytes\nfix: make sure that this is the file you mean; free some memory, or raise max_bytes", .{ where, limit, size });
}

/// The usual ones in words; with all that there are, the table takes 5 KB.
fn reason(result: usize) []const u8 {
    return switch (linux.errno(result)) {
        .PERM, .ACCES => "no right to it",
        .NOENT, .NOTDIR => "no such file",
        .ISDIR => "a folder",
        .NFILE, .MFILE => "too many open files",
        .NAMETOOLONG => "too long a name",
        else => "another error of the system",
    };
}

fn unreadable(path: [*:0]const u8, why: []const u8) Error {
    return message.fail(error.File, "{s}: expected a file that can be read, found {s}\nfix: give the path of a file that exists, and the right to read it", .{ path, why });
}

/// Read up to `into.len` bytes of a file that the system makes up, which has no length.
pub fn readSome(path: [*:0]const u8, into: []u8) []u8 {
    const opened = linux.open(path, .{ .ACCMODE = .RDONLY, .CLOEXEC = true }, 0);
    if (failed(opened)) return into[0..0];
    defer _ = linux.close(@intCast(opened));
    var at: usize = 0;
    while (at < into.len) {
        const got = linux.read(@intCast(opened), into.ptr + at, into.len - at);
        if (failed(got) or got == 0) break;
        at += got;
    }
    return into[0..at];
}

pub fn writeFile(path: [*:0]const u8, parts: []const []const u8) Error!void {
    const file = try create(path);
    defer close(file);
    return writeAll(file, path, parts);
}

/// Open a file for writing, empty.
pub fn create(path: [*:0]const u8) Error!i32 {
    const opened = linux.open(path, .{ .ACCMODE = .WRONLY, .CREAT = true, .TRUNC = true, .CLOEXEC = true }, 0o644);
    const why = switch (linux.errno(opened)) {
        .NOENT => "no such folder",
        .NOSPC => "a full disk",
        .ROFS => "a disk that can only be read",
        else => reason(opened),
    };
    if (failed(opened)) return message.fail(error.File, "{s}: expected a file that can be written, found {s}\nfix: make its folder, or give another one", .{ path, why });
    return @intCast(opened);
}

pub fn writeAll(file: i32, path: [*:0]const u8, parts: []const []const u8) Error!void {
    for (parts) |part| if (!write(file, part))
        return message.fail(error.File, "{s}: expected to be written, found a disk that is full or gone\nfix: make room", .{path});
}

/// Open a file, to be read bit by bit.
pub fn open(path: [*:0]const u8) Error!i32 {
    const opened = linux.open(path, .{ .ACCMODE = .RDONLY, .CLOEXEC = true }, 0);
    if (failed(opened)) return unreadable(path, reason(opened));
    return @intCast(opened);
}

/// Read until `into` is full or the file ends, and return how many bytes that were.
pub fn readUpTo(file: i32, path: [*:0]const u8, into: []u8) Error!usize {
    var at: usize = 0;
    while (at < into.len) {
        const got = linux.read(file, into.ptr + at, @min(into.len - at, 1 << 30));
        if (linux.errno(got) == .INTR) continue;
        if (failed(got)) return unreadable(path, reason(got));
        if (got == 0) break;
        at += got;
    }
    return at;
}

pub fn close(file: i32) void {
    _ = linux.close(file);
}

pub fn write(descriptor: i32, bytes: []const u8) bool {
    var at: usize = 0;
    while (at < bytes.len) {
        const put = linux.write(descriptor, bytes.ptr + at, bytes.len - at);
        if (linux.errno(put) == .INTR) continue;
        if (failed(put)) return false;
        at += put;
    }
    return true;
}

pub const Clock = enum { wall, cpu };

/// Nanoseconds, of a clock that never goes back or of this process's CPU time.
pub fn now(clock: Clock) u64 {
    var time: linux.timespec = undefined;
    _ = linux.clock_gettime(if (clock == .wall) .MONOTONIC else .PROCESS_CPUTIME_ID, &time);
    return @as(u64, @intCast(time.sec)) * 1_000_000_000 + @as(u64, @intCast(time.nsec));
}

/// Sleep while `word` is `value`, or less: the caller looks again.
pub fn sleepWhile(word: *const std.atomic.Value(u32), value: u32) void {
    _ = linux.futex_4arg(&word.raw, .{ .cmd = .WAIT, .private = true }, value, null);
}

pub fn wakeAll(word: *const std.atomic.Value(u32)) void {
    _ = linux.futex_3arg(&word.raw, .{ .cmd = .WAKE, .private = true }, std.math.maxInt(i32));
}

pub fn process() i32 {
    return linux.getpid();
}

pub fn thread() i32 {
    return linux.gettid();
}

pub const nowhere: u32 = std.math.maxInt(u32);

/// The CPU that the calling thread is on; nowhere where the system does not say.
pub fn cpu() u32 {
    var number = nowhere;
    _ = linux.syscall3(.getcpu, @intFromPtr(&number), 0, 0);
    return number;
}

/// A set of CPUs, a bit for each, as Linux has it on machines that are little endian.
const CpuSet = [128]u8;

/// The CPUs that a thread may use, 0 being the calling one; none where the system does not say. In one place, not where
/// it is called: a set is large.
noinline fn allowed(id: i32) CpuSet {
    var set: CpuSet = @splat(0);
    _ = linux.syscall3(.sched_getaffinity, @as(u32, @bitCast(id)), set.len, @intFromPtr(&set));
    return set;
}

/// How many CPUs the calling thread may use.
pub fn cpus() usize {
    var count: usize = 0;
    for (allowed(0)) |byte| count += @popCount(byte);
    return @max(1, count);
}

/// Let a thread use these CPUs alone; 0 is the calling one. Returns whether the system does.
fn allow(id: i32, set: *const CpuSet) bool {
    return !failed(linux.syscall3(.sched_setaffinity, @as(u32, @bitCast(id)), set.len, @intFromPtr(set)));
}

/// Take a CPU away from those of a thread, and give another back, or none: nowhere.
pub fn exchange(id: i32, taken: u32, given: u32) void {
    var set = allowed(id);
    if (given != nowhere) set[given / 8 % set.len] |= bit(given);
    set[taken / 8 % set.len] &= ~bit(taken);
    _ = allow(id, &set);
}

fn bit(number: u32) u8 {
    return @as(u8, 1) << @intCast(number % 8);
}

/// Keep the calling thread on one CPU. Returns whether the system lets it.
pub fn pin(number: u32) bool {
    var set: CpuSet = @splat(0);
    if (number / 8 >= set.len) return false;
    set[number / 8] = bit(number);
    return allow(0, &set);
}

/// Whether the system lets threads of this process be on a CPU; the calling one stays where it may be.
pub fn canPin(number: u32) bool {
    const before = allowed(0);
    defer _ = allow(0, &before);
    return pin(number);
}
