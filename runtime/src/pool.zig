//! Threads that wait for work in the middle of a run: they spin for a while, then sleep. Tasks are claimed, not dealt:
//! where a worker sleeps, or another process has its core, the caller does its share.
const std = @import("std");
const abi = @import("abi.zig");
const message = @import("message.zig");
const platform = @import("platform.zig");
const Error = message.Error;
const Counter = std.atomic.Value(u32);

pub const max_threads = 64;
const spins_alone = 2000; // about 50 microseconds
const tried = 4; // runs with all threads, then as many with one
const cycle = 1024; // runs from one trial to the next
const long = 500_000; // nanoseconds of a run that has all threads without a trial
const stack_size = 1 << 20;

/// Memory that one thread's kernels take and give many times in a run; kept, as mapping fresh pages costs more than
/// most kernels.
pub const Workspace = struct {
    blocks: [16]Block = @splat(.{}),
    /// Its worker, as the system numbers threads.
    thread: i32 = 0,

    const Block = struct { memory: platform.Memory = &.{}, taken: bool = false };

    fn take(workspace: *Workspace, size: u64) ?*anyopaque {
        var best: ?*Block = null;
        for (&workspace.blocks) |*block| {
            if (block.taken) continue;
            const other = best orelse {
                best = block;
                continue;
            };
            const fits = block.memory.len >= size;
            const is_better = if (other.memory.len >= size) fits and block.memory.len < other.memory.len else block.memory.len > other.memory.len;
            if (is_better) best = block;
        }
        const block = best orelse return null;
        if (block.memory.len < size) {
            platform.unmap(block.memory);
            block.memory = &.{};
            block.memory = platform.map(std.math.cast(usize, size) orelse return null) catch return null;
        }
        if (block.memory.len == 0) block.memory = platform.map(1) catch return null;
        block.taken = true;
        return block.memory.ptr;
    }

    fn give(workspace: *Workspace, memory: ?*anyopaque) void {
        for (&workspace.blocks) |*block| {
            if (block.taken and @as(?*anyopaque, block.memory.ptr) == memory) block.taken = false;
        }
    }

    /// After a kernel that failed, and gave nothing back.
    pub fn reset(workspace: *Workspace) void {
        for (&workspace.blocks) |*block| block.taken = false;
    }

    pub fn free(workspace: *Workspace) void {
        for (&workspace.blocks) |*block| platform.unmap(block.memory);
        workspace.* = .{};
    }
};

pub const Pool = struct {
    /// Number of the launch << 32 | next task: who is late cannot claim a task of another launch.
    ticket: std.atomic.Value(u64) align(64) = .init(0),
    epoch: Counter align(64) = .init(0),
    pending: Counter align(64) = .init(0),
    is_waited_for: std.atomic.Value(bool) = .init(false),
    asleep: Counter align(64) = .init(0),
    failed: std.atomic.Value(bool) = .init(false),
    stopping: std.atomic.Value(bool) = .init(false),
    run: std.atomic.Value(?abi.Task) = .init(null),
    data: std.atomic.Value(?*anyopaque) = .init(null),
    count: Counter = .init(0),
    spins: u32 = spins_alone,
    threads: u32 = 1,
    handles: [max_threads]std.Thread = undefined,
    /// What a short run takes with all threads, and with the caller alone: to wake another may take longer than it saves.
    least: [2]u64 = @splat(0),
    /// Runs since the trial began.
    runs: u32 = 0,
    /// How often runs have been long of late.
    heat: u8 = 0,
    is_alone: bool = false,
    /// Whether what runs is little.
    is_small: bool = false,
    began: u64 = 0,
    /// The CPU of who woke the workers last, which they keep off.
    avoided: u32 = platform.nowhere,
    /// Where threads stay, taken in turn, the caller's first; anywhere without.
    cpus: []const u32 = &.{},
    /// One for each thread, the caller's first.
    workspaces: []Workspace = &.{},

    /// Start `threads` - 1 workers: the caller of a run is the first. The pool must stay where it is.
    pub fn start(pool: *Pool, threads: u32) Error!void {
        pool.workspaces = std.heap.page_allocator.alloc(Workspace, threads) catch return message.fail(error.Memory, "memory: expected room for {d} threads, found none\nfix: ask for fewer", .{threads});
        @memset(pool.workspaces, .{});
        pool.runs = 0;
        if (threads > if (pool.cpus.len != 0) pool.cpus.len else platform.cpus()) pool.spins = 50; // who spins holds a core that another needs
        for (1..threads) |index| {
            pool.handles[index] = std.Thread.spawn(.{ .stack_size = stack_size }, worker, .{ pool, index }) catch {
                pool.stop();
                return message.fail(error.Memory, "threads: expected {d}, found that the system gives {d}\nfix: ask for fewer", .{ threads, index });
            };
            pool.threads += 1;
        }
    }

    pub fn stop(pool: *Pool) void {
        pool.stopping.store(true, .seq_cst);
        _ = pool.epoch.fetchAdd(1, .seq_cst);
        platform.wakeAll(&pool.epoch);
        for (pool.handles[1..pool.threads]) |handle| handle.join();
        pool.free();
        pool.threads = 1;
        pool.stopping.store(false, .seq_cst);
    }

    /// Give memory back, where the threads are those of another process.
    pub fn free(pool: *Pool) void {
        for (pool.workspaces) |*workspace| workspace.free();
        std.heap.page_allocator.free(pool.workspaces);
        pool.workspaces = &.{};
    }

    /// Before each run: choose whether it has all threads.
    pub fn begin(pool: *Pool) void {
        if (pool.threads == 1) return;
        if (pool.runs == 0) pool.least = @splat(std.math.maxInt(u64));
        pool.is_alone = if (pool.runs < 2 * tried) pool.runs >= tried else pool.least[1] < pool.least[0];
        pool.began = platform.now(.wall);
    }

    /// After each run.
    pub fn end(pool: *Pool) void {
        if (pool.threads == 1) return;
        const took = platform.now(.wall) -% pool.began;
        const least = &pool.least[@intFromBool(pool.is_alone)];
        if (pool.runs < 2 * tried) least.* = @min(least.*, took);
        pool.runs = (pool.runs + 1) % cycle;
        if (took < long) {
            pool.heat -|= 1;
            return;
        }
        pool.heat +|= 8;
        if (pool.heat < 16) return; // the system took the CPU away for a while
        pool.least = .{ 0, 0 };
        pool.runs = 2 * tried;
    }

    fn claim(pool: *Pool) void {
        var ticket = pool.ticket.load(.acquire);
        while (true) {
            const count = pool.count.load(.monotonic);
            const index: u32 = @truncate(ticket);
            const run = pool.run.load(.monotonic);
            const data = pool.data.load(.monotonic);
            if (index >= count) return;
            if (pool.ticket.cmpxchgWeak(ticket, ticket + 1, .acq_rel, .acquire)) |now| {
                ticket = now;
                continue;
            }
            var group: abi.Group = .{ .sync = null, .tasks = @intCast(count) };
            if (run.?(@intCast(index), &group, data) != 0) pool.failed.store(true, .monotonic);
            if (pool.pending.fetchSub(1, .seq_cst) == 1 and pool.is_waited_for.load(.seq_cst)) platform.wakeAll(&pool.pending);
            ticket = pool.ticket.load(.acquire);
        }
    }

    /// Keep workers, which all sleep, off the caller's CPU: the system may wake one there, where it waits until the
    /// caller sleeps.
    fn makeWay(pool: *Pool) void {
        if (pool.cpus.len != 0 or pool.spins != spins_alone) return;
        const number = platform.cpu();
        if (pool.avoided == number) return;
        for (pool.workspaces[1..]) |*own| platform.exchange(own.thread, number, pool.avoided);
        pool.avoided = number;
    }

    fn launch(pool: *Pool, run: abi.Task, data: ?*anyopaque, count: u32) bool {
        pool.failed.store(false, .monotonic);
        pool.is_waited_for.store(false, .monotonic);
        pool.pending.store(count, .monotonic);
        pool.run.store(run, .monotonic);
        pool.data.store(data, .monotonic);
        pool.count.store(count, .monotonic);
        const epoch = pool.epoch.load(.monotonic) +% 1;
        pool.ticket.store(@as(u64, epoch) << 32, .release);
        pool.epoch.store(epoch, .seq_cst);
        const asleep = pool.asleep.load(.seq_cst);
        if (asleep == pool.threads - 1) pool.makeWay();
        if (asleep != 0) platform.wakeAll(&pool.epoch);
        pool.claim();
        var turns: u32 = 0;
        while (true) : (turns +|= 1) {
            const left = pool.pending.load(.acquire);
            if (left == 0) break;
            if (turns < pool.spins) {
                std.atomic.spinLoopHint();
            } else {
                pool.is_waited_for.store(true, .seq_cst);
                platform.sleepWhile(&pool.pending, left);
            }
        }
        return !pool.failed.load(.monotonic);
    }
};

fn worker(pool: *Pool, index: usize) void {
    current = .{ .pool = null, .workspace = &pool.workspaces[index] };
    pool.workspaces[index].thread = platform.thread();
    if (pool.cpus.len != 0) _ = platform.pin(pool.cpus[index % pool.cpus.len]);
    var seen: u32 = 0;
    while (true) {
        var turns: u32 = 0;
        while (pool.epoch.load(.acquire) == seen) : (turns +|= 1) {
            if (turns < pool.spins) {
                std.atomic.spinLoopHint();
                continue;
            }
            _ = pool.asleep.fetchAdd(1, .seq_cst);
            platform.sleepWhile(&pool.epoch, seen);
            _ = pool.asleep.fetchSub(1, .seq_cst);
        }
        seen = pool.epoch.load(.acquire);
        if (pool.stopping.load(.seq_cst)) return;
        pool.claim();
    }
}

/// What the kernels of the calling thread use: their calls carry no context. No pool: launches run here, as they do
/// inside of a task.
pub const Context = struct { pool: ?*Pool = null, workspace: ?*Workspace = null };
threadlocal var current: Context = .{};

/// Choose whether the calling thread's launches run there, as what they do is little.
pub fn keepAlone(is_small: bool) void {
    if (current.pool) |pool| pool.is_small = is_small;
}

/// Returns the one before, to be put back.
pub fn enter(context: Context) Context {
    const before = current;
    current = context;
    return before;
}

/// `__TVMBackendParallelLaunch`.
pub fn parallelLaunch(run: abi.Task, data: ?*anyopaque, wanted: c_int) callconv(.c) c_int {
    const pool = current.pool;
    const threads: u32 = if (pool) |p| if (p.is_alone or p.is_small) 1 else p.threads else 1;
    const count: u32 = if (wanted <= 0) threads else @intCast(wanted);
    if (threads > 1 and count > 1) {
        current.pool = null;
        defer current.pool = pool;
        return if (pool.?.launch(run, data, count)) 0 else -1;
    }
    var group: abi.Group = .{ .sync = null, .tasks = @intCast(count) };
    for (0..count) |index| if (run(@intCast(index), &group, data) != 0) return -1;
    return 0;
}

/// `__TVMBackendAllocWorkspace`.
pub fn workspaceTake(_: c_int, _: c_int, size: u64, _: c_int, _: c_int) callconv(.c) ?*anyopaque {
    return if (current.workspace) |workspace| workspace.take(size) else null;
}

/// `__TVMBackendFreeWorkspace`.
pub fn workspaceGive(_: c_int, _: c_int, memory: ?*anyopaque) callconv(.c) c_int {
    if (current.workspace) |workspace| workspace.give(memory);
    return 0;
}
