//! What AFL++ or libFuzzer calls with bytes of their own: the first says which part of a library they are, and all digests
//! are mended, so that what reads the part is reached. Everything else is of a library that was built, which is named by
//! FORGE_FUZZ_LIBRARY. Checks of the language that fail, and reads outside of memory, end the process.
const std = @import("std");
const core = @import("core");
const Mac = std.crypto.auth.hmac.sha2.HmacSha256;
const Hkdf = std.crypto.kdf.hkdf.HkdfSha256;
const Model = core.model.Model;
const Session = core.session.Session;

pub const panic = std.debug.no_panic;

const Part = enum(u8) { program, footer, code, sealed, variants };
const footer_size = 96;
const digest_size = 32;
const key_size = 164;

/// The library, and where its parts lie.
var library: []const u8 = &.{};
var code: []const u8 = &.{};
var weights: []const u8 = &.{};
var program: []const u8 = &.{};
var metadata: []const u8 = &.{};

extern fn getenv(name: [*:0]const u8) ?[*:0]const u8;

export fn LLVMFuzzerInitialize(_: *c_int, _: *[*][*:0]u8) c_int {
    const path = getenv("FORGE_FUZZ_LIBRARY") orelse @trap();
    const file = core.platform.readFile(path, 1 << 30, null) catch @trap();
    library = file.memory[0..file.size];
    const footer = library[library.len - footer_size ..];
    code = library[0..number(u64, footer[16..])];
    const weights_at = std.mem.alignForward(usize, code.len, 4096);
    weights = library[weights_at..][0..number(u64, footer[24..])];
    const program_at = std.mem.alignForward(usize, weights_at + weights.len, 64);
    program = library[program_at..][0..number(u64, footer[32..])];
    metadata = library[program_at + program.len .. library.len - footer_size];
    return 0;
}

fn number(comptime T: type, bytes: []const u8) usize {
    return @intCast(std.mem.readInt(T, bytes[0..@sizeOf(T)], .big));
}

export fn LLVMFuzzerTestOneInput(data: [*]const u8, size: usize) c_int {
    if (size == 0 or size > 1 << 20) return -1;
    const bytes = data[1..size];
    switch (std.enums.fromInt(Part, data[0]) orelse return -1) {
        .program => open(compose(code, bytes, null), true),
        .footer => if (bytes.len >= footer_size - digest_size) open(compose(code, program, bytes[0 .. footer_size - digest_size]), false) else return -1,
        .code => open(compose(bytes, program, null), false),
        .variants => if (bytes.len > 0) openVariants(bytes[0], bytes[1..]) else return -1,
        .sealed => if (bytes.len >= key_size) unseal(bytes[0..key_size], bytes[key_size..]) else return -1,
    }
    return 0;
}

/// A library of these parts, with the lengths that are right where no footer is given, and with its digest.
fn compose(elf: []const u8, table: []const u8, given: ?[]const u8) core.platform.File {
    const weights_at = std.mem.alignForward(usize, elf.len, 4096);
    const program_at = std.mem.alignForward(usize, weights_at + weights.len, 64);
    const size = program_at + table.len + metadata.len + footer_size;
    const memory = core.platform.map(size) catch @trap();
    @memcpy(memory[0..elf.len], elf);
    @memcpy(memory[weights_at..][0..weights.len], weights);
    @memcpy(memory[program_at..][0..table.len], table);
    @memcpy(memory[program_at + table.len ..][0..metadata.len], metadata);
    const footer = memory[size - footer_size .. size];
    if (given) |bytes| @memcpy(footer[0..bytes.len], bytes) else {
        @memcpy(footer, library[library.len - footer_size ..]);
        std.mem.writeInt(u64, footer[16..24], elf.len, .big);
        std.mem.writeInt(u64, footer[32..40], table.len, .big);
    }
    std.crypto.hash.sha2.Sha256.hash(memory[0 .. size - digest_size], footer[footer_size - digest_size ..][0..digest_size], .{});
    return .{ .memory = memory, .size = size };
}

/// A library of the format with variants: how many, then their table and their programs.
fn openVariants(count: u8, table: []const u8) void {
    const file = compose(code, table, null);
    const bytes = file.memory[0..file.size];
    const footer = bytes[bytes.len - footer_size ..];
    std.mem.writeInt(u16, footer[8..10], 3, .big);
    std.mem.writeInt(u16, footer[10..12], count, .big);
    std.crypto.hash.sha2.Sha256.hash(bytes[0 .. bytes.len - digest_size], footer[footer_size - digest_size ..][0..digest_size], .{});
    open(file, true);
}

fn unseal(key_file: []const u8, sealed: []const u8) void {
    var key: [key_size]u8 = key_file[0..key_size].*;
    const file = core.platform.copy(sealed) catch @trap();
    const bytes = file.memory[0..file.size];
    if (bytes.len >= 128) mend(&key, bytes);
    openWith(file, .{ .key = &key, .password = "password" }, false);
}

/// Make the key file the model's, and both of their codes right.
fn mend(key: *[key_size]u8, bytes: []u8) void {
    key[40..72].* = bytes[64..96].*;
    Mac.create(key[132..164], key[0..132], derived[32..64]);
    const header = number(u32, bytes[16..]);
    if (header < 128 or header > bytes.len) return;
    var mac_key: [32]u8 = undefined;
    Hkdf.expand(&mac_key, "mlenc/v1/header", Hkdf.extract(bytes[32..64], key[84..116]));
    Mac.create(bytes[header - 32 ..][0..32], bytes[0 .. header - 32], &mac_key);
}

fn open(file: core.platform.File, can_run: bool) void {
    openWith(file, .{}, can_run);
}

fn openWith(file: core.platform.File, secret: core.model.Secret, can_run: bool) void {
    var model: Model = .{};
    defer model.close();
    model.openOwned(file, secret) catch return;
    if (can_run) run(&model) catch return;
}

/// One call, with extents of two and three, and inputs of small numbers.
fn run(model: *Model) !void {
    var arena: std.heap.ArenaAllocator = .init(std.heap.page_allocator);
    defer arena.deinit();
    var session: Session = .{ .model = model };
    defer session.stop();
    try session.start(1);
    const inputs = try arena.allocator().alloc(core.session.Array, model.program.inputs.len);
    const outputs = try arena.allocator().alloc(core.session.Array, model.program.outputs.len);
    for (model.program.inputs, inputs) |port, *input| {
        input.* = .{ .data = null, .size = 0, .shape = @splat(0) };
        const shape = input.shape[0..@intCast(port.rank)];
        for (shape, port.shape[0..shape.len]) |*extent, wanted| extent.* = if (wanted >= 0) wanted else 2 + @mod(wanted, 2);
        const size = core.program.bytes(port.dtype, shape) orelse return;
        if (size > 1 << 24) return;
        const data = try arena.allocator().alignedAlloc(u8, .@"64", @intCast(size));
        for (data, 0..) |*byte, index| byte.* = if (index % 8 == 0) 1 else 0;
        input.data = data.ptr;
        input.size = @intCast(size);
    }
    for (outputs) |*output| output.* = .{ .data = null, .size = 0, .shape = @splat(0) };
    try session.run(inputs, outputs);
}

// ---- in the place of the ciphers: what is encrypted is what it is, and every tag is right ----

const derived: [64]u8 = @splat(7);

fn digest(first: ?*const [64]u8, data: [*]const u8, size: usize, out: *[32]u8) callconv(.c) void {
    var hash: std.crypto.hash.sha2.Sha256 = .init(.{});
    if (first) |block| hash.update(block);
    hash.update(data[0..size]);
    hash.final(out);
}

fn decrypt(to: [*]u8, from: [*]const u8, size: usize, _: [*]const u8, _: usize, _: *const [12]u8, _: *const [32]u8) callconv(.c) bool {
    @memmove(to[0..size], from[0..size]);
    return true;
}

fn derive(out: *[64]u8, _: [*]u8, _: u32, _: [*]const u8, _: usize, _: *const [16]u8, _: u32, _: u32, _: *const anyopaque) callconv(.c) void {
    out.* = derived;
}

/// Only `derive` would call it.
fn mix() callconv(.c) void {}

comptime {
    for ([_][]const u8{ "portable", "fast" }) |form| {
        @export(&digest, .{ .name = "forge_sha256_" ++ form });
        @export(&mix, .{ .name = "forge_mix_" ++ form });
    }
    @export(&derive, .{ .name = "forge_derive_portable" });
    for ([_][]const u8{ "portable", "fast", "wide" }) |form| @export(&decrypt, .{ .name = "forge_decrypt_" ++ form });
}
