//! Loads the kernels' shared object from memory of this process: no file, no descriptor, no constructors, no other
//! libraries. Code is never writable, and what it may call is a list. Anything else in the object is refused.
const std = @import("std");
const builtin = @import("builtin");
const abi = @import("abi.zig");
const bytes = @import("bytes.zig");
const math = @import("math.zig");
const message = @import("message.zig");
const platform = @import("platform.zig");
const pool = @import("pool.zig");
const Error = message.Error;

const Header = extern struct { ident: [16]u8, type: u16, machine: u16, version: u32, entry: u64, segments: u64, sections: u64, flags: u32, size: u16, segment_size: u16, segment_count: u16, section_size: u16, section_count: u16, names: u16 };
/// Where a segment lies in a page is the same in the file: the smallest page of any CPU.
const least_page = 4096;
const Segment = extern struct { type: u32, flags: u32, offset: u64, address: u64, physical: u64, file_size: u64, size: u64, alignment: u64 };
const Entry = extern struct { tag: i64, value: u64 };
const Symbol = extern struct { name: u32, info: u8, other: u8, section: u16, value: u64, size: u64 };
const Relocation = extern struct { where: u64, type: u32, symbol: u32, addend: i64 };

const load_segment = 1;
const dynamic = 2;
const interpreter = 3;
const thread_local = 7;
const relro = 0x6474e552;
const stack = 0x6474e551;
const executable = 1;
const writable = 2;

const Machine = struct { number: u16, absolute: u32, data: u32, jump: u32, relative: u32 };
const machine: Machine = switch (builtin.cpu.arch) {
    .x86_64 => .{ .number = 62, .absolute = 1, .data = 6, .jump = 7, .relative = 8 },
    .aarch64 => .{ .number = 183, .absolute = 257, .data = 1025, .jump = 1026, .relative = 1027 },
    .riscv64 => .{ .number = 243, .absolute = 2, .data = 2, .jump = 5, .relative = 3 },
    else => @compileError("no loader for this CPU"),
};

fn memcmp(a: [*]const u8, b: [*]const u8, size: usize) callconv(.c) c_int {
    for (a[0..size], b[0..size]) |x, y| if (x != y) return @as(c_int, x) - y;
    return 0;
}

fn raise(kind: ?[*:0]const u8, parts: ?[*]const ?[*:0]const u8, count: i32) callconv(.c) void {
    message.raise(kind, parts, count);
}

const provided = [_]math.Symbol{
    .{ .name = "TVMFFIErrorSetRaisedFromCStrParts", .address = &raise },
    .{ .name = "memcpy", .address = &bytes.copy },
    .{ .name = "memmove", .address = &bytes.move },
    .{ .name = "memset", .address = &bytes.fill },
    .{ .name = "memcmp", .address = &memcmp },
    .{ .name = "bcmp", .address = &memcmp },
} ++ math.symbols[0..math.symbols.len].*;
/// The names are one text: a pointer to each is a relocation, which takes more than a name.
const provided_names = joined: {
    var list: []const u8 = "";
    for (provided) |symbol| list = list ++ symbol.name ++ " ";
    break :joined list;
};
const provided_addresses = addresses: {
    var list: [provided.len]*const anyopaque = undefined;
    for (&list, provided) |*address, symbol| address.* = symbol.address;
    break :addresses list;
};

/// Where a function lies that kernels may call.
fn addressOf(name: []const u8) ?u64 {
    var left = std.mem.tokenizeScalar(u8, provided_names, ' ');
    var index: usize = 0;
    while (left.next()) |known| : (index += 1) if (std.mem.eql(u8, known, name)) return @intFromPtr(provided_addresses[index]);
    return null;
}

/// Pointers that the kernels have, empty, for whoever runs them to fill. All others of TVM's runtime are refused.
const filled = [_]math.Symbol{
    .{ .name = "__TVMBackendParallelLaunch", .address = &pool.parallelLaunch },
    .{ .name = "__TVMBackendAllocWorkspace", .address = &pool.workspaceTake },
    .{ .name = "__TVMBackendFreeWorkspace", .address = &pool.workspaceGive },
};

const refused = [_][]const u8{ "__TVMBackendParallelBarrier", "__TVMFFIEnvModLookupFromImports", "__TVMFFIFunctionCall", "__TVMBackendGetFuncFromEnv" };

const damage: message.Frame = .{ .head = "code of the library: expected a shared object of forge-pipeline, found ", .tail = "\nfix: build the library anew" };

fn damaged(comptime what: [:0]const u8, arguments: anytype) Error {
    if (arguments.len == 0) return plainly(what);
    return message.failIn(error.Damaged, &damage, what, arguments);
}

/// As in `program.zig`: a call with one argument.
noinline fn plainly(what: [*:0]const u8) Error {
    @branchHint(.cold);
    return message.failIn(error.Damaged, &damage, "{s}", .{what});
}

pub const Image = struct {
    memory: platform.Memory = &.{},
    segments: [16]Segment = undefined,
    count: usize = 0,
    symbols: usize = 0,
    names: []const u8 = &.{},
    hash: usize = 0,

    /// After an error, `unload`.
    pub fn load(image: *Image, file: []const u8) Error!void {
        try image.readSegments(file);
        const page = platform.pageSize();
        const size = try image.layOut(file.len, page);
        image.memory = try platform.map(size);
        for (image.segments[0..image.count]) |s| {
            if (s.type == load_segment) @memcpy(image.memory[@intCast(s.address)..][0..@intCast(s.file_size)], file[@intCast(s.offset)..][0..@intCast(s.file_size)]);
        }
        try image.readDynamic();
        try image.fillPointers();
        clearCache(image.memory);
        for (image.segments[0..image.count]) |s| {
            if (s.type == load_segment and s.flags & writable == 0) try image.protect(s.address, std.mem.alignForward(u64, s.address + s.size, page), page, s.flags);
            if (s.type == relro and !image.inSegment(s.address, s.size, writable)) return damaged("data that stays outside of it", .{});
            if (s.type == relro) try image.protect(s.address, s.address + s.size, page, 0);
        }
    }

    pub fn unload(image: *Image) void {
        platform.unmap(image.memory);
        image.* = .{};
    }

    /// The address of a function; null where there is none of that name.
    pub fn function(image: *const Image, name: []const u8) Error!?abi.Kernel {
        const place = try image.find(name) orelse return null;
        if (!image.inSegment(place, 4, executable) or place % @alignOf(@typeInfo(abi.Kernel).pointer.child) != 0) return damaged("a kernel outside of its code", .{});
        return @ptrCast(@alignCast(image.memory.ptr + place));
    }

    fn readSegments(image: *Image, file: []const u8) Error!void {
        if (file.len < @sizeOf(Header) or !std.mem.eql(u8, file[0..7], "\x7fELF\x02\x01\x01")) return damaged("no 64-bit little-endian ELF", .{});
        const head = std.mem.bytesAsValue(Header, file[0..@sizeOf(Header)]).*;
        if (head.machine != machine.number)
            return message.fail(error.Machine, "library: expected code for {s} (ELF machine {d}), found that for machine {d}\nfix: build the model for this machine's target", .{ @tagName(builtin.cpu.arch), machine.number, head.machine });
        const size = @as(u64, head.segment_count) * @sizeOf(Segment);
        if (head.type != 3 or head.segment_size != @sizeOf(Segment) or head.segment_count > image.segments.len) return damaged("another kind of ELF", .{});
        if (head.segments > file.len or size > file.len - head.segments) return damaged("segments outside of it", .{});
        image.count = head.segment_count;
        @memcpy(std.mem.sliceAsBytes(image.segments[0..image.count]), file[@intCast(head.segments)..][0..@intCast(size)]);
    }

    /// Check that segments lie one after the other on pages of their own, and so in the file; return the size of all.
    fn layOut(image: *const Image, file_size: usize, page: u64) Error!usize {
        var end: u64 = 0;
        var read: u64 = 0;
        for (image.segments[0..image.count]) |s| {
            if (s.type == thread_local or s.type == interpreter or (s.type == stack and s.flags & executable != 0)) return damaged("a segment of a kind that kernels do not need", .{});
            if (s.size > 1 << 40 or s.address > 1 << 40) return damaged("a segment of {d} bytes", .{s.size});
            if (s.type != load_segment) continue;
            if (s.offset > file_size or s.file_size > file_size - s.offset or s.file_size > s.size) return damaged("a segment outside of it", .{});
            if (s.offset < read or (s.offset ^ s.address) % least_page != 0) return damaged("a segment at another place than where it was linked", .{});
            if (s.flags & executable != 0 and s.file_size != s.size) return damaged("code that is not in it", .{});
            read = s.offset + s.file_size;
            if (s.flags & writable != 0 and s.flags & executable != 0) return damaged("code that can be written", .{});
            if (end != 0 and s.address < std.mem.alignForward(u64, end, page))
                return message.fail(error.Machine, "library: expected segments on pages of {d} bytes, found smaller ones\nfix: build it for a target with pages of this size", .{page});
            end = s.address + s.size;
        }
        if (end == 0) return damaged("no segments", .{});
        return std.mem.alignForward(usize, @intCast(end), @intCast(page));
    }

    fn inSegment(image: *const Image, place: u64, size: u64, flags: u32) bool {
        for (image.segments[0..image.count]) |s| {
            if (s.type == load_segment and s.flags & flags == flags and place >= s.address and size <= s.size and place - s.address <= s.size - size) return true;
        }
        return false;
    }

    fn at(image: *const Image, comptime T: type, place: u64) Error!T {
        if (place > image.memory.len or @sizeOf(T) > image.memory.len - place) return damaged("a table outside of it", .{});
        return std.mem.bytesAsValue(T, image.memory[@intCast(place)..][0..@sizeOf(T)]).*;
    }

    fn readDynamic(image: *Image) Error!void {
        const segment = for (image.segments[0..image.count]) |s| {
            if (s.type == dynamic) break s;
        } else return damaged("no dynamic section", .{});
        var tables: struct { names: ?u64 = null, names_size: u64 = 0, symbols: ?u64 = null, hash: ?u64 = null, rela: u64 = 0, rela_size: u64 = 0, jumps: u64 = 0, jumps_size: u64 = 0 } = .{};
        var place = segment.address;
        while (place < segment.address + segment.size) : (place += @sizeOf(Entry)) {
            const entry = try image.at(Entry, place);
            switch (entry.tag) {
                0 => break,
                2 => tables.jumps_size = entry.value,
                5 => tables.names = entry.value,
                6 => tables.symbols = entry.value,
                7 => tables.rela = entry.value,
                8 => tables.rela_size = entry.value,
                10 => tables.names_size = entry.value,
                23 => tables.jumps = entry.value,
                30 => if (entry.value & ~@as(u64, 8) != 0) return damaged("dynamic flags {x}", .{entry.value}),
                0x6ffffef5 => tables.hash = entry.value,
                9, 11 => if (entry.value != 24) return damaged("tables with rows of {d} bytes", .{entry.value}),
                1, 3, 14, 20, 24, 0x6ffffffb, 0x6ffffff9 => {}, // names of libraries and of itself, and hints
                0x70000001, 0x70000005 => {}, // registers that calls keep
                else => return damaged("dynamic tag {x}", .{entry.tag}),
            }
        }
        const names = tables.names orelse return damaged("no names", .{});
        image.symbols = @intCast(tables.symbols orelse return damaged("no symbols", .{}));
        image.hash = @intCast(tables.hash orelse return damaged("no table of names", .{}));
        if (tables.names_size == 0 or names > image.memory.len or tables.names_size > image.memory.len - names) return damaged("names outside of it", .{});
        image.names = image.memory[@intCast(names)..][0..@intCast(tables.names_size)];
        if (image.names[image.names.len - 1] != 0) return damaged("names without an end", .{});
        try image.relocate(tables.rela, tables.rela_size);
        try image.relocate(tables.jumps, tables.jumps_size);
    }

    fn symbolName(image: *const Image, symbol: Symbol) Error![]const u8 {
        if (symbol.name >= image.names.len) return damaged("a name outside of it", .{});
        return std.mem.sliceTo(image.names[symbol.name..], 0);
    }

    fn relocate(image: *Image, table: u64, size: u64) Error!void {
        if (size > image.memory.len) return damaged("relocations outside of it", .{});
        var place = table;
        while (place < table +| size) : (place += @sizeOf(Relocation)) {
            const row = try image.at(Relocation, place);
            if (!image.inSegment(row.where, 8, writable)) return damaged("a relocation outside of its data", .{});
            const base: u64 = @intFromPtr(image.memory.ptr);
            const value = if (row.type == machine.relative) base else if (row.type == machine.absolute or row.type == machine.data or row.type == machine.jump)
                try image.resolve(row.symbol)
            else
                return damaged("a relocation of type {d}", .{row.type});
            std.mem.writeInt(u64, image.memory[@intCast(row.where)..][0..8], value +% @as(u64, @bitCast(row.addend)), .little);
        }
    }

    fn resolve(image: *const Image, index: u32) Error!u64 {
        const symbol = try image.at(Symbol, image.symbols + @as(u64, index) * @sizeOf(Symbol));
        const name = try image.symbolName(symbol);
        if (symbol.section != 0) {
            if (symbol.info & 15 > 2 or symbol.value > image.memory.len) return damaged("{s}, a symbol of another kind", .{name});
            return @intFromPtr(image.memory.ptr) + symbol.value;
        }
        if (addressOf(name)) |address| return address;
        return message.fail(error.Unsupported, "library: expected calls that this runtime answers, found one of {s}\nfix: build the library anew, or run it with Engine", .{name});
    }

    /// Where a symbol lies that is defined, by the GNU table of names.
    pub fn find(image: *const Image, name: []const u8) Error!?usize {
        var hash: u32 = 5381;
        for (name) |byte| hash = hash *% 33 +% byte;
        const buckets: u64 = try image.at(u32, image.hash);
        const first = try image.at(u32, image.hash + 4);
        const words: u64 = try image.at(u32, image.hash + 8);
        if (buckets == 0) return null;
        const bucket = image.hash + 16 + 8 * words;
        var index = try image.at(u32, bucket + 4 * (hash % buckets));
        if (index < first) return null;
        while (true) : (index +%= 1) {
            const chain = try image.at(u32, bucket + 4 * buckets + 4 * @as(u64, index - first));
            if (chain | 1 == hash | 1) {
                const symbol = try image.at(Symbol, image.symbols + @as(u64, index) * @sizeOf(Symbol));
                if (std.mem.eql(u8, try image.symbolName(symbol), name)) return if (symbol.section != 0 and symbol.value < image.memory.len) @intCast(symbol.value) else null;
            }
            if (chain & 1 == 1) return null;
        }
    }

    fn fillPointers(image: *Image) Error!void {
        for (filled) |symbol| {
            const place = try image.find(symbol.name) orelse continue;
            if (!image.inSegment(place, 8, writable)) return damaged("a pointer outside of its data", .{});
            std.mem.writeInt(u64, image.memory[place..][0..8], @intFromPtr(symbol.address), .little);
        }
        for (refused) |name| if (try image.find(name) != null)
            return message.fail(error.Unsupported, "library: expected kernels alone, found calls of TVM's runtime by name ({s})\nfix: build the library anew, or run it with Engine", .{name});
    }

    fn protect(image: *const Image, from: u64, to: u64, page: u64, flags: u32) Error!void {
        const start = std.mem.alignBackward(u64, from, page);
        const end = std.mem.alignBackward(u64, to, page);
        if (end > image.memory.len) return damaged("a segment outside of it", .{});
        if (start >= end) return;
        try platform.protect(@alignCast(image.memory[@intCast(start)..@intCast(end)]), if (flags & executable != 0) .execute else .read);
    }
};

/// Code was written as data: CPUs with separate caches must be told.
fn clearCache(memory: []const u8) void {
    switch (builtin.cpu.arch) {
        .x86_64 => {},
        else => clear_cache.__clear_cache(memory.ptr, memory.ptr + memory.len),
    }
}
const clear_cache = struct {
    extern fn __clear_cache(from: *const anyopaque, to: *const anyopaque) void;
};
