//! `forge-run`: runs a library on the command line. One static executable, without a C library.
const std = @import("std");
const abi = @import("abi.zig");
const compare = @import("compare.zig");
const message = @import("message.zig");
const npy = @import("npy.zig");
const options_of = @import("options.zig");
const p = @import("program.zig");
const platform = @import("platform.zig");
const version = @import("version").version;
const Error = message.Error;
const Model = @import("model.zig").Model;
const Session = @import("session.zig").Session;
const Array = @import("session.zig").Array;
const Options = options_of.Options;

pub const panic = std.debug.FullPanic(bug);
pub const std_options_debug_io: std.Io = std.Io.failing;

const exit_usage = 2;
const exit_bug = 70;

fn bug(what: []const u8, _: ?usize) noreturn {
    _ = platform.write(2, "forge-run: a bug of ours: ");
    _ = platform.write(2, what);
    _ = platform.write(2, "\n");
    std.os.linux.exit_group(exit_bug);
}

fn print(comptime format: []const u8, arguments: anytype) void {
    var text: [2048]u8 = undefined;
    const said = std.fmt.bufPrint(&text, format, arguments) catch text[0..];
    _ = platform.write(1, said);
}

var options: Options = .{};

pub fn main(init: std.process.Init.Minimal) u8 {
    var arguments = init.args.iterate();
    _ = arguments.next();
    run(&arguments) catch |failure| {
        const said = std.mem.span(message.last());
        _ = platform.write(2, "error: ");
        _ = platform.write(2, said);
        _ = platform.write(2, "\n");
        return if (failure == error.Usage) exit_usage else 1;
    };
    return 0;
}

fn run(arguments: anytype) Error!void {
    try options_of.parse(&options, arguments);
    if (options.help) return print("{s}", .{options_of.help});
    if (options.version) return print("forge-run {s}\n", .{version});
    const path = options.model orelse return message.fail(error.Usage, "command line: expected a library, found none\nfix: see forge-run --help", .{});
    var arena_state: std.heap.ArenaAllocator = .init(std.heap.page_allocator);
    const arena = arena_state.allocator();
    var times: Times = .{};
    var model: Model = .{};
    defer model.close();
    const began = platform.now(.wall);
    try open(&model, path);
    times.open = platform.now(.wall) - began;
    var session: Session = .{ .model = &model };
    defer session.stop();
    try session.start(options.threads);
    const inputs = arena.alloc(Array, model.program.inputs.len) catch return noMemory();
    const outputs = arena.alloc(Array, model.program.outputs.len) catch return noMemory();
    try makeInputs(&model, inputs);
    try measure(arena, &session, inputs, outputs, &times);
    if (options.output) |folder| try writeOutputs(&model, outputs, folder);
    if (options.json) reportJson(&model, &times) else report(&model, inputs, outputs, &times);
    if (options.profile) reportProfile(&session);
    for (options.expected.all(), 0..) |item, index| try expect(&model, outputs, item, index);
}

fn noMemory() Error {
    return message.fail(error.Memory, "memory: expected room for arrays, found none\nfix: free memory", .{});
}

fn open(model: *Model, path: [:0]const u8) Error!void {
    const file = try platform.readFile(path, 1 << 46);
    const key_path = options.key orelse return model.openOwned(file, null);
    const key = try platform.readFile(key_path, 1 << 20);
    defer platform.unmap(key.memory);
    const password_path = options.password_file orelse return message.fail(error.Usage, "--password-file: expected the file with the password, found none\nfix: give it beside --key", .{});
    const password = try platform.readFile(password_path, 1 << 20);
    defer platform.wipe(password.memory);
    platform.hide(password.memory);
    var text: []const u8 = password.memory[0..password.size];
    if (std.mem.endsWith(u8, text, "\n")) text = text[0 .. text.len - 1];
    if (std.mem.endsWith(u8, text, "\r")) text = text[0 .. text.len - 1];
    return model.openOwned(file, .{ .key = key.memory[0..key.size], .password = text });
}

// ---- inputs ----

fn makeInputs(model: *const Model, inputs: []Array) Error!void {
    const ports = model.program.inputs;
    for (inputs) |*input| input.* = .{ .data = null, .size = 0, .shape = @splat(-1) };
    for (options.inputs.all(), 0..) |item, position| {
        const index = try find(ports, item.name, position, "input");
        const file = try npy.read(item.value);
        const port = ports[index];
        if (!file.dtype.equals(port.dtype) or file.rank != port.rank) {
            var wanted: [64]u8 = undefined;
            var found: [64]u8 = undefined;
            return message.fail(error.Input, "input {s}: expected {s} of {d} axes, found {s} of {d} in {s}\nfix: give an array that fits the model", .{ port.name, dtypeName(&wanted, port.dtype), port.rank, dtypeName(&found, file.dtype), file.rank, item.value });
        }
        inputs[index] = file.array;
    }
    var prng: std.Random.DefaultPrng = .init(0);
    for (ports, inputs) |port, *input| {
        if (input.data != null) continue;
        for (port.shape[0..@intCast(port.rank)], input.shape[0..@intCast(port.rank)]) |wanted, *extent| {
            extent.* = if (wanted >= 0) wanted else try sizeOf(model, inputs, ~wanted);
        }
        input.size = @intCast(p.bytes(port.dtype, input.shape[0..@intCast(port.rank)]) orelse return message.fail(error.Input, "input {s}: expected a shape, found one that is too large\nfix: give smaller sizes", .{port.name}));
        const memory = try platform.map(input.size);
        compare.fill(prng.random(), port.dtype, memory[0..input.size]);
        input.data = memory.ptr;
    }
}

/// The size of an open extent: as asked, or that of an input which has it, or 1.
fn sizeOf(model: *const Model, inputs: []const Array, extent: i64) Error!i64 {
    const name = model.program.extents[@intCast(extent)];
    for (options.sizes.all()) |item| {
        if (!std.mem.eql(u8, item.name orelse "", name)) continue;
        return std.fmt.parseInt(u32, item.value, 10) catch message.fail(error.Usage, "--size: expected {s}=N, found {s}\nfix: give a whole number", .{ name, item.value });
    }
    for (model.program.inputs, inputs) |port, input| {
        if (input.data == null) continue;
        for (port.shape[0..@intCast(port.rank)], input.shape[0..@intCast(port.rank)]) |wanted, found| if (wanted == ~extent) return found;
    }
    return 1;
}

fn find(ports: []const p.Port, name: ?[]const u8, position: usize, comptime what: []const u8) Error!usize {
    const wanted = name orelse {
        if (position < ports.len) return position;
        return message.fail(error.Usage, "command line: expected at most {d} " ++ what ++ "s, found more\nfix: give one file for each", .{ports.len});
    };
    for (ports, 0..) |port, index| if (std.mem.eql(u8, std.mem.span(port.name), wanted)) return index;
    const first = if (ports.len > 0) ports[0].name else "none";
    return message.fail(error.Usage, "command line: expected the name of an " ++ what ++ ", such as {s}, found {s}\nfix: give a name that the library has: forge-run MODEL lists them", .{ first, wanted });
}

// ---- runs ----

const Times = struct { open: u64 = 0, first: u64 = 0, cpu: u64 = 0, runs: []u64 = &.{} };

fn measure(arena: std.mem.Allocator, session: *Session, inputs: []const Array, outputs: []Array, times: *Times) Error!void {
    const start = platform.now(.wall);
    try once(session, inputs, outputs);
    times.first = platform.now(.wall) - start;
    session.is_profiling = options.profile;
    times.runs = arena.alloc(u64, options.runs) catch return noMemory();
    const cpu = platform.now(.cpu);
    for (times.runs) |*time| {
        const before = platform.now(.wall);
        try once(session, inputs, outputs);
        time.* = platform.now(.wall) - before;
    }
    times.cpu = platform.now(.cpu) - cpu;
    if (options.profile and options.runs == 0) try once(session, inputs, outputs);
    std.mem.sort(u64, times.runs, {}, std.sort.asc(u64));
}

fn once(session: *Session, inputs: []const Array, outputs: []Array) Error!void {
    for (outputs) |*output| output.* = .{ .data = null, .size = 0, .shape = @splat(0) };
    return session.run(inputs, outputs);
}

// ---- outputs ----

fn writeOutputs(model: *const Model, outputs: []const Array, folder: [:0]const u8) Error!void {
    for (model.program.outputs, outputs, 0..) |port, output, index| {
        var text: [4096]u8 = undefined;
        const path = std.fmt.bufPrintSentinel(&text, "{s}/out{d}.npy", .{ folder, index }, 0) catch return message.fail(error.File, "--output: expected a path, found one that is too long\nfix: give a shorter one", .{});
        try npy.write(path, port.dtype, output.shape[0..@intCast(port.rank)], bytesOf(output));
    }
}

fn bytesOf(output: Array) []const u8 {
    return if (output.data) |data| data[0..output.size] else &.{};
}

fn expect(model: *const Model, outputs: []const Array, item: options_of.Named, position: usize) Error!void {
    const index = try find(model.program.outputs, item.name, position, "output");
    const port = model.program.outputs[index];
    const output = outputs[index];
    const file = try npy.read(item.value);
    defer if (file.array.data) |data| platform.unmap(@alignCast(data[0..std.mem.alignForward(usize, @max(1, file.array.size), platform.pageSize())]));
    const is_same = file.dtype.equals(port.dtype) and file.rank == port.rank and std.mem.eql(i64, file.array.shape[0..file.rank], output.shape[0..file.rank]);
    if (!is_same) return message.fail(error.Input, "output {s}: expected the dtype and shape of {s}, found others\nfix: compare with an array that the same model gave for the same inputs", .{ port.name, item.value });
    const found = compare.arrays(port.dtype, bytesOf(output), bytesOf(file.array), options.rtol, options.atol);
    if (found.wrong != 0) return message.fail(error.Input, "output {s}: expected {s} within rtol {d}, atol {d}, found {d} of {d} elements outside, by {e:.2} at most\nfix: compare inputs and model with those that gave it, or give other tolerances", .{ port.name, item.value, options.rtol, options.atol, found.wrong, found.elements, found.greatest });
    if (!options.json) print("output {s}: as expected, differs by {e:.2} at most\n", .{ port.name, found.greatest });
}

// ---- what is said ----

fn dtypeName(text: *[64]u8, dtype: abi.Dtype) []const u8 {
    const name = switch (dtype.code) {
        0 => "int",
        1 => "uint",
        2 => "float",
        4 => "bfloat",
        else => return "bool",
    };
    return std.fmt.bufPrint(text, "{s}{d}", .{ name, dtype.bits }) catch unreachable;
}

fn reportPort(comptime what: []const u8, port: p.Port, shape: []const i64) void {
    var text: [64]u8 = undefined;
    print(what ++ " {s}: {s} [", .{ port.name, dtypeName(&text, port.dtype) });
    for (shape, 0..) |extent, axis| print("{s}{d}", .{ if (axis == 0) "" else ", ", extent });
    print("]\n", .{});
}

fn milliseconds(nanoseconds: u64) f64 {
    return @as(f64, @floatFromInt(nanoseconds)) / 1e6;
}

fn quantile(sorted: []const u64, percent: usize) f64 {
    return milliseconds(sorted[@min(sorted.len - 1, sorted.len * percent / 100)]);
}

/// KiB that the process had at most: not of `getrusage`, which starts with what the parent had.
fn peak() usize {
    var buffer: [4096]u8 = undefined;
    const said = platform.readSome("/proc/self/status", &buffer);
    const at = std.mem.indexOf(u8, said, "VmHWM:") orelse return 0;
    var words = std.mem.tokenizeAny(u8, said[at + 6 ..], " \t\n");
    return std.fmt.parseInt(usize, words.next() orelse "0", 10) catch 0;
}

fn report(model: *const Model, inputs: []const Array, outputs: []const Array, times: *const Times) void {
    for (model.program.inputs, inputs) |port, input| reportPort("input", port, input.shape[0..@intCast(port.rank)]);
    for (model.program.outputs, outputs) |port, output| reportPort("output", port, output.shape[0..@intCast(port.rank)]);
    print("opened in {d:.2} ms, first run {d:.3} ms\n", .{ milliseconds(times.open), milliseconds(times.first) });
    if (times.runs.len > 0) {
        const count: f64 = @floatFromInt(times.runs.len);
        var total: u64 = 0;
        for (times.runs) |time| total += time;
        print("{d} runs, {d} threads: least {d:.4} ms, p50 {d:.4}, p90 {d:.4}, p99 {d:.4}; {d:.1} a second; CPU {d:.4} ms a run\n", .{ times.runs.len, options.threads, quantile(times.runs, 0), quantile(times.runs, 50), quantile(times.runs, 90), quantile(times.runs, 99), count * 1e3 / milliseconds(@max(1, total)), milliseconds(times.cpu) / count });
    }
    if (options.memory) print("weights {d} bytes, arena {d} bytes, peak of the process {d} KiB\n", .{ model.weights.len, model.scratch(), peak() });
}

fn reportJson(model: *const Model, times: *const Times) void {
    print("{{\"open_ms\": {d:.4}, \"first_ms\": {d:.4}, \"runs\": {d}, \"threads\": {d}", .{ milliseconds(times.open), milliseconds(times.first), times.runs.len, options.threads });
    if (times.runs.len > 0) {
        const count: f64 = @floatFromInt(times.runs.len);
        print(", \"least_ms\": {d:.4}, \"p50_ms\": {d:.4}, \"p90_ms\": {d:.4}, \"p99_ms\": {d:.4}, \"cpu_ms\": {d:.5}", .{ quantile(times.runs, 0), quantile(times.runs, 50), quantile(times.runs, 90), quantile(times.runs, 99), milliseconds(times.cpu) / count });
    }
    print(", \"weights\": {d}, \"arena\": {d}, \"peak_kib\": {d}}}\n", .{ model.weights.len, model.scratch(), peak() });
}

/// Kernels, those that took longest first.
fn reportProfile(session: *Session) void {
    const names = session.model.program.kernels;
    const times = session.profile.nanoseconds;
    var total: u64 = 0;
    for (times) |time| total += time;
    for (0..names.len) |_| {
        const next = std.mem.indexOfMax(u64, times);
        if (times[next] == 0) return;
        print("{d: >5.1} %  {d: >10.4} ms  {d: >6} calls  {s}\n", .{ 100 * milliseconds(times[next]) / milliseconds(@max(1, total)), milliseconds(times[next]), session.profile.calls[next], names[next] });
        times[next] = 0;
    }
}
