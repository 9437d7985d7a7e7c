//! Weights that nothing but their preparation reads: a model gives their memory back as soon as that is done, so that no
//! process ever has both forms of all of them.
const std = @import("std");
const p = @import("program.zig");
const platform = @import("platform.zig");

const ever = std.math.maxInt(u32);

/// How many calls have yet to read each page of the weights.
pub const Pages = struct {
    weights: []const u8,
    size: usize,
    start: usize,
    counts: []u32,
    is_secret: bool,

    /// Of memory that is not to be given back.
    pub const none: Pages = .{ .weights = &.{}, .size = 1, .start = 0, .counts = &.{}, .is_secret = false };

    /// Of the weights of `program`, which lie in memory that may be given back; nothing of them is, where preparing them
    /// is more than calls of kernels.
    pub fn init(arena: std.mem.Allocator, program: *const p.Program, prepare: *const p.Function, weights: []const u8, is_secret: bool) error{OutOfMemory}!Pages {
        const size = platform.pageSize();
        const start = std.mem.alignForward(usize, @intFromPtr(weights.ptr), size);
        const end = std.mem.alignBackward(usize, @intFromPtr(weights.ptr) + weights.len, size);
        const calls_alone = for (prepare.operations) |operation| {
            if (operation.code != .call and operation.code != .done) break false;
        } else true;
        const counts = try arena.alloc(u32, if (calls_alone and start < end) (end - start) / size else 0);
        @memset(counts, 0);
        const pages: Pages = .{ .weights = weights, .size = size, .start = start, .counts = counts, .is_secret = is_secret };
        for (program.functions) |*function| {
            if (function != prepare) for (function.rows) |row| pages.add(program, row, ever);
        }
        for (prepare.results()) |tensor| pages.add(program, prepare.rows[@intCast(tensor)], ever);
        for (prepare.operations) |operation| if (operation.code == .call) {
            for (operation.words[2..]) |word| if (word & 3 == 0) pages.add(program, prepare.rows[@intCast(word >> 2)], 1);
        };
        return pages;
    }

    /// A call of `prepare` was made: give back what it read and nobody will read again.
    pub fn after(pages: *const Pages, program: *const p.Program, prepare: *const p.Function, operation: p.Operation) void {
        for (operation.words[2..]) |word| {
            if (word & 3 != 0) continue;
            var first, const end = pages.of(program, prepare.rows[@intCast(word >> 2)]);
            for (first..end) |index| {
                const count = &pages.counts[index];
                if (count.* != ever) count.* -= 1;
                if (count.* == 0) continue;
                pages.discard(first, index);
                first = index + 1;
            }
            pages.discard(first, end);
        }
    }

    fn discard(pages: *const Pages, first: usize, end: usize) void {
        if (first >= end) return;
        const memory: [*]align(platform.page) u8 = @ptrFromInt(pages.start + first * pages.size);
        platform.discard(memory[0 .. (end - first) * pages.size], pages.is_secret);
    }

    fn add(pages: *const Pages, program: *const p.Program, row: p.Row, readers: u32) void {
        const first, const end = pages.of(program, row);
        for (pages.counts[first..end]) |*count| count.* +|= readers;
    }

    /// Those that a weight has a part of, without any where the row is no weight. Those at the ends, with more than weights
    /// in them, are not counted.
    fn of(pages: *const Pages, program: *const p.Program, row: p.Row) struct { usize, usize } {
        if (row.kind != .weight) return .{ 0, 0 };
        const weight = program.weights[@intCast(row.where)];
        const from = @intFromPtr(pages.weights.ptr) + @as(usize, @intCast(weight.offset));
        const first = (from -| pages.start) / pages.size;
        const end = std.math.divCeil(usize, (from + @as(usize, @intCast(weight.size))) -| pages.start, pages.size) catch unreachable;
        return .{ @min(first, pages.counts.len), @min(end, pages.counts.len) };
    }
};
