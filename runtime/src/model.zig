//! A model: a library that was opened and checked. Nothing in it changes any more, so any number of sessions share it.
const std = @import("std");
const abi = @import("abi.zig");
const buffers = @import("buffers.zig");
const check = @import("check.zig");
const cpu = @import("cpu.zig");
const elf = @import("elf.zig");
const frame = @import("frame.zig");
const message = @import("message.zig");
const p = @import("program.zig");
const platform = @import("platform.zig");
const pool = @import("pool.zig");
const sealed = @import("sealed.zig");
const spent = @import("spent.zig");
const variants = @import("variants.zig");
const Parts = variants.Parts;
const Error = message.Error;

const page = 4096;
const footer_size = 96;
const digest_size = 32;
const magic = "\x89MLLIB\r\n";
const file_limit = 1 << 46;

/// An encrypted model's key file and password, and the memory that deriving its key may take.
pub const Secret = struct {
    key: ?[]const u8 = null,
    password: ?[]const u8 = null,
    limit: usize = std.math.maxInt(usize),

    fn isGiven(secret: Secret) bool {
        return secret.key != null or secret.password != null;
    }
};

pub const Model = struct {
    arena: std.heap.ArenaAllocator = .init(std.heap.page_allocator),
    /// The library, where it is this model's own; a plaintext is wiped.
    file: platform.Memory = &.{},
    is_plaintext: bool = false,
    /// The file is the one that somebody trusted signed: its own digest tells nothing more.
    is_signed: bool = false,
    /// Which variant is asked for, by the caller's text; then the one that was opened, by the file's. Null: the best for
    /// this CPU; a library without variants.
    variant: ?[:0]const u8 = null,
    image: elf.Image = .{},
    program: p.Program = undefined,
    weights: []const u8 = &.{},
    metadata: []const u8 = &.{},
    kernels: []const abi.Kernel = &.{},
    kept: platform.Memory = &.{},
    prepared: []const [*]u8 = &.{},

    /// Open a library that lies in memory of its own, which the model takes.
    pub fn openOwned(model: *Model, file: platform.File, secret: Secret) Error!void {
        model.file = file.memory;
        var library: []align(page) u8 = file.memory[0..file.size];
        if (isSealed(library)) {
            const key = secret.key orelse return lacks("key");
            const password = secret.password orelse return lacks("password");
            model.is_plaintext = true;
            platform.hide(model.file);
            library = @alignCast(try sealed.open(library, key, password, secret.limit));
        } else if (secret.isGiven()) return notSealed();
        try platform.protect(model.file, .read);
        const parts = try split(library, model.is_signed and !model.is_plaintext);
        try model.start(parts);
        if (parts.variants != 0) model.forget();
        model.release(parts);
    }

    /// Open a library where it lies: it must be 64-byte aligned, and stay as it is while the model is open.
    pub fn openHere(model: *Model, file: []align(abi.alignment) const u8, secret: Secret) Error!void {
        if (secret.isGiven()) return notSealed();
        try model.start(try split(file, model.is_signed));
    }

    pub fn close(model: *Model) void {
        model.image.unload();
        platform.unmap(model.kept);
        if (model.is_plaintext) platform.wipe(model.file) else platform.unmap(model.file);
        model.arena.deinit();
    }

    /// Bytes for values between kernels, of the function that needs most; what depends on sizes of a call comes on top.
    pub fn scratch(model: *const Model) usize {
        var most: usize = 0;
        for (model.program.functions) |function| {
            if (function.role != .prepare) most = @max(most, function.scratch);
        }
        return most;
    }

    pub fn areas(model: *const Model) frame.Areas {
        return .{ .weights = model.weights, .constants = model.program.constants, .prepared = model.prepared };
    }

    fn start(model: *Model, parts: Parts) Error!void {
        const chosen = if (parts.variants == 0) parts else try model.choose(parts);
        if (parts.variants == 0 and model.variant != null) return message.fail(error.Usage, "variant: expected a library that has some, found one without\nfix: leave it out", .{});
        try model.load(chosen);
    }

    /// The first variant that this machine runs: the best is the first of the table. One that is asked for is the only one.
    fn choose(model: *Model, whole: Parts) Error!Parts {
        const wanted = model.variant;
        var refused: ?Error = null;
        for (0..whole.variants) |index| {
            const variant = try variants.at(whole, index);
            if (wanted) |name| if (!std.mem.eql(u8, name, variant.name)) continue;
            const program = try p.read(model.arena.allocator(), variant.parts.program);
            checkMachine(&program) catch |failure| {
                if (failure != error.Machine) return failure;
                refused = failure;
                continue;
            };
            message.clear();
            model.variant = variant.name;
            return variant.parts;
        }
        return refused orelse message.fail(error.Usage, "variant: expected one that the library has, found {s}\nfix: its metadata.json names them", .{wanted.?});
    }

    fn load(model: *Model, parts: Parts) Error!void {
        if (parts.program.len == 0) return message.fail(error.Unsupported, "library: expected a library for a CPU, found one without a program, as those for other devices are\nfix: compile the model for a CPU, or load the library with TVM's own runtime", .{});
        const arena = model.arena.allocator();
        model.weights = parts.weights;
        model.metadata = parts.metadata;
        model.program = try p.read(arena, parts.program);
        try checkMachine(&model.program);
        var room: std.heap.ArenaAllocator = .init(std.heap.page_allocator);
        defer room.deinit();
        try check.all(arena, room.allocator(), &model.program, model.weights.len);
        try model.image.load(parts.elf);
        try model.checkCaller(parts.program);
        const kernels = arena.alloc(abi.Kernel, model.program.kernels.len) catch return noMemory();
        for (model.program.kernels, kernels) |name, *kernel| {
            kernel.* = try model.image.function(name) orelse return p.damaged("kernel {s}, which the code does not have", .{name});
        }
        model.kernels = kernels;
        try model.prepare();
    }

    /// Kernels that do not look at their arguments say whose calls are known to fit.
    noinline fn checkCaller(model: *const Model, program: []const u8) Error!void {
        const place = try model.image.find("__forge_program") orelse return;
        const code = model.image.memory;
        if (code.len - place < digest_size or !sealed.hasDigest(program, code[place..][0..digest_size])) return p.damaged("one that the code was not made for", .{});
    }

    /// Run the function of that role, once.
    fn prepare(model: *Model) Error!void {
        const function = for (model.program.functions) |*function| {
            if (function.role == .prepare) break function;
        } else return;
        const workspace = try platform.map(function.scratch);
        defer platform.unmap(workspace);
        model.kept = try platform.map(function.kept);
        var room: std.heap.ArenaAllocator = .init(std.heap.page_allocator);
        defer room.deinit();
        var given = model.areas();
        given.scratch = workspace;
        given.kept = model.kept;
        var ready: frame.Frame = undefined;
        var supply: buffers.Buffers = .{};
        defer supply.free();
        ready.init(room.allocator(), &model.program, function, model.kernels, given, &supply) catch return noMemory();
        var blocks: pool.Workspace = .{};
        defer blocks.free();
        const before = pool.enter(.{ .workspace = &blocks });
        defer _ = pool.enter(before);
        const never: std.atomic.Value(bool) = .init(false);
        message.clear();
        const pages: spent.Pages = if (model.file.len == 0) .none else spent.Pages.init(room.allocator(), &model.program, function, model.weights, model.is_plaintext) catch return noMemory();
        if (pages.counts.len == 0) try ready.run(&never, false) else for (function.operations, ready.calls) |operation, *call| {
            if (operation.code != .call) continue;
            _ = try ready.runCall(&call.*.?, &never, false);
            pages.after(&model.program, function, operation);
        }
        const results = function.results();
        const list = model.arena.allocator().alloc([*]u8, results.len) catch return noMemory();
        for (results, list) |tensor, *address| address.* = ready.tensors[@intCast(tensor)].data.?;
        model.prepared = list;
        try platform.protect(model.kept, .read);
    }

    /// Give back the weights before and behind those of the variant: nothing reads them.
    fn forget(model: *const Model) void {
        var first = model.weights.len;
        var end: usize = 0;
        for (model.program.weights) |weight| {
            first = @min(first, @as(usize, @intCast(weight.offset)));
            end = @max(end, @as(usize, @intCast(weight.offset + weight.size)));
        }
        model.discard(model.weights[0..first]);
        model.discard(model.weights[@max(first, end)..]);
    }

    fn discard(model: *const Model, part: []const u8) void {
        const from = std.mem.alignForward(usize, @intFromPtr(part.ptr), platform.pageSize());
        const to = std.mem.alignBackward(usize, @intFromPtr(part.ptr) + part.len, platform.pageSize());
        if (from >= to) return;
        const memory: [*]align(page) u8 = @ptrFromInt(from);
        platform.discard(memory[0 .. to - from], model.is_plaintext);
    }

    /// Give back what was needed to open the library: its code lies elsewhere by now.
    fn release(model: *Model, parts: Parts) void {
        const size = std.mem.alignBackward(usize, parts.weights.ptr - model.file.ptr, platform.pageSize());
        if (size == 0) return;
        const code: platform.Memory = model.file[0..size];
        model.file = @alignCast(model.file[size..]);
        if (model.is_plaintext) platform.wipe(code) else platform.unmap(code);
    }
};

pub fn isSealed(file: []const u8) bool {
    return std.mem.startsWith(u8, file, sealed.magic);
}

fn lacks(comptime what: [:0]const u8) Error {
    return message.fail(error.Password, "encrypted model: expected its key file and password, found Model looks encrypted but no " ++ what ++ " provided\nfix: give both: Engine(library, key=PATH_OF_modelKey.bin, password=PASSWORD)", .{});
}

fn notSealed() Error {
    return message.fail(error.Damaged, "library: expected an encrypted model, as a key or a password was given, found a file that is not encrypted\nfix: make sure that this is the file you mean; a plain library is opened without key and password", .{});
}

fn noMemory() Error {
    return message.fail(error.Memory, "memory: expected room for the model's tables, found none\nfix: free memory", .{});
}

fn number(comptime T: type, at: []const u8) usize {
    return std.math.lossyCast(usize, std.mem.readInt(T, at[0..@sizeOf(T)], .big));
}

const wrong = "library: expected a library of forge-pipeline, format 2, found {s}\nfix: copy the file again from where it was built, or build it anew";

/// Refuse what is neither encrypted nor ends as a library does: it need not be read.
pub fn look(first: []const u8, last: []const u8, _: usize) Error!void {
    if (!isSealed(first)) try checkEnd(last);
}

fn checkEnd(last: []const u8) Error!void {
    if (last.len >= footer_size and std.mem.eql(u8, last[last.len - footer_size ..][0..8], magic)) return;
    const is_old = last.len >= 64 and std.mem.eql(u8, last[last.len - 64 ..][0..8], magic); // the footer of format 1
    return message.fail(error.Damaged, wrong, .{if (is_old) "format 1, of an older release" else "a file that is cut off, or another kind of file"});
}

/// The parts of a library, after every byte of it was checked; what is known to be whole is not digested again.
fn split(file: []align(abi.alignment) const u8, is_whole: bool) Error!Parts {
    try checkEnd(file);
    const footer = file[file.len - footer_size ..];
    const count = number(u16, footer[10..]); // of variants, which format 3 has
    if (number(u16, footer[8..]) != @as(usize, if (count == 0) 2 else 3) or !std.mem.allEqual(u8, footer[40..64], 0)) return message.fail(error.Damaged, wrong, .{"another format"});
    const sizes = [_]usize{ number(u64, footer[16..]), number(u64, footer[24..]), number(u64, footer[32..]), number(u32, footer[12..]) };
    for (sizes) |size| if (size > file.len) return message.fail(error.Damaged, wrong, .{"lengths that do not account for the file"});
    const weights = std.mem.alignForward(usize, sizes[0], page);
    const program = std.mem.alignForward(usize, weights + sizes[1], abi.alignment);
    if (program + sizes[2] + sizes[3] + footer_size != file.len) return message.fail(error.Damaged, wrong, .{"lengths that do not account for the file"});
    const is_padded = std.mem.allEqual(u8, file[sizes[0]..weights], 0) and std.mem.allEqual(u8, file[weights + sizes[1] .. program], 0);
    if (!is_padded or !(is_whole or sealed.hasDigest(file[0 .. file.len - digest_size], footer[footer_size - digest_size ..]))) return message.fail(error.Damaged, wrong, .{"contents that were altered or damaged"});
    return .{ .elf = file[0..sizes[0]], .weights = file[weights..][0..sizes[1]], .program = @alignCast(file[program..][0..sizes[2]]), .metadata = file[program + sizes[2] ..][0..sizes[3]], .variants = count };
}

fn checkMachine(program: *const p.Program) Error!void {
    const arch = std.mem.sliceTo(program.triple, '-');
    const mine = @tagName(@import("builtin").cpu.arch);
    if (!std.mem.eql(u8, arch, mine))
        return message.fail(error.Machine, "library: expected a library for this machine, which is {s} with linux, found one made for {s}\nfix: compile the model for this machine: target=host, or one of `forge-pipeline targets`", .{ mine, program.triple });
    for (program.cpu_flags) |flag| {
        const there = cpu.has(flag) orelse return message.fail(error.Machine, "/proc/cpuinfo: expected what this CPU has, found nothing, and the library needs {s}\nfix: mount /proc", .{flag});
        if (@import("builtin").cpu.arch == .x86_64 and there and std.mem.eql(u8, flag, "amx_tile")) try cpu.askForTiles();
        if (!there) return message.fail(error.Machine, "library: expected a CPU that has what it was compiled for, found a CPU without {s}\nfix: compile the model for this machine: target=host, or an older generation of its family", .{flag});
    }
}
