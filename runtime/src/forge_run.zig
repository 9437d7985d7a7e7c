//! `forge-run`: runs a library on the command line. One static executable, without a C library.
const std = @import("std");
const abi = @import("core").abi;
const decimal = @import("decimal.zig");
const compare = @import("compare.zig");
const message = @import("core").message;
const npy = @import("npy.zig");
const options_of = @import("options.zig");
const p = @import("core").program;
const platform = @import("core").platform;
const samples = @import("samples.zig");
const version = @import("version").version;
const Error = message.Error;
const model_of = @import("core").model;
const Model = model_of.Model;
const Session = @import("core").session.Session;
const signature = @import("core").signature;
const Array = @import("core").session.Array;
const Options = options_of.Options;
const Milliseconds = decimal.Milliseconds;
const Decimal = decimal.Decimal;

/// A check of the language that fails is a fault of this program: it ends at once, without a word, by a signal.
pub const panic = std.debug.no_panic;
pub const std_options_debug_io: std.Io = std.Io.failing;
pub const std_options: std.Options = .{ .signal_stack_size = null };

const exit_usage = 2;

fn print(comptime format: []const u8, arguments: anytype) void {
    var text: [2048]u8 = undefined;
    const said = std.fmt.bufPrint(&text, format, arguments) catch text[0..];
    _ = platform.write(1, said);
}

pub fn main(init: std.process.Init.Minimal) u8 {
    platform.protectPointers();
    var arguments = init.args.iterate();
    _ = arguments.next();
    var options: Options = .{};
    run(&options, &arguments) catch |failure| {
        complain(&options, std.mem.span(message.last()));
        return if (failure == error.Usage) exit_usage else 1;
    };
    return 0;
}

/// Say what went wrong, with the paths of files that the core knows no names of.
fn complain(options: *const Options, said: []const u8) void {
    const where = said[0 .. std.mem.indexOf(u8, said, ": expected ") orelse 0];
    _ = platform.write(2, "error: ");
    const kept, const path = for ([_]struct { []const u8, ?[:0]const u8 }{ .{ "the library", options.model }, .{ "library", options.model }, .{ "encrypted model", options.model }, .{ "key file", options.key }, .{ "trusted keys", options.trusted } }) |named| {
        const name, const given = named;
        const path = given orelse continue;
        if (path.len != 0 and std.mem.endsWith(u8, where, name)) break .{ where.len - name.len, path };
    } else .{ where.len, "" };
    _ = platform.write(2, said[0..kept]);
    for (path) |byte| _ = platform.write(2, if (byte < ' ' or byte == 127) "?" else &.{byte});
    _ = platform.write(2, said[where.len..]);
    _ = platform.write(2, "\n");
}

fn run(options: *Options, arguments: anytype) Error!void {
    const linked = platform.attached();
    if (linked != null) options.model = "";
    try options_of.parse(options, arguments);
    if (options.help) return print("{s}", .{options_of.help});
    if (options.version) return print("forge-run {s}\n", .{version});
    const path = options.model orelse return message.fail(error.Usage, "command line: expected a library, found none\nfix: see forge-run --help", .{});
    var arena_state: std.heap.ArenaAllocator = .init(std.heap.page_allocator);
    const arena = arena_state.allocator();
    var times: Times = .{};
    var model: Model = .{ .variant = options.variant };
    defer model.close();
    const began = platform.now(.wall);
    try open(options, &model, linked, path);
    times.open = platform.now(.wall) - began;
    var session: Session = .{ .model = &model };
    defer session.stop();
    try session.start(options.threads);
    const cpus = options.cpus.all();
    if (cpus.len != 0) {
        try session.pin(cpus);
        _ = platform.pin(cpus[0]);
    }
    const inputs = arena.alloc(Array, model.program.inputs.len) catch return noMemory();
    const outputs = arena.alloc(Array, model.program.outputs.len) catch return noMemory();
    try checkSizes(options, &model);
    if (options.samples) {
        try runSamples(options, arena, &session, inputs, outputs, &times);
    } else {
        try makeInputs(options, &model, inputs);
        try runFirst(&session, inputs, outputs, &times);
        try measure(options, arena, &session, inputs, outputs, &times);
        if (options.output) |folder| try writeOutputs(&model, outputs, folder);
    }
    if (options.json) reportJson(options, &model, &times) else report(options, &model, inputs, outputs, &times);
    if (options.profile) try reportProfile(arena, &session);
    for (options.expected.all(), 0..) |item, index| try expect(options, &model, outputs, item, index);
}

fn noMemory() Error {
    return message.fail(error.Memory, "memory: expected room for arrays, found none\nfix: free memory", .{});
}

fn open(options: *const Options, model: *Model, linked: ?[]align(abi.alignment) const u8, path: [:0]const u8) Error!void {
    if (linked) |artifact| if (!model_of.isSealed(artifact) and options.key == null and options.trusted == null) return model.openHere(artifact, .{});
    const file = if (linked) |artifact| try platform.copy(artifact) else try platform.readFile(path, 1 << 46, model_of.look);
    if (options.trusted) |keys_path| {
        const keys = try platform.readFile(keys_path, 1 << 20, null);
        defer platform.unmap(keys.memory);
        try signature.check(file.memory[0..file.size], .{ .keys = keys.memory[0..keys.size], .path = if (options.signature) |given| given.ptr else null, .signed = if (linked == null) path.ptr else null });
        model.is_signed = true;
    } else if (options.signature != null) return message.fail(error.Usage, "--trusted: expected keys to check the signature with, found none\nfix: give it beside --signature", .{});
    const key_path = options.key orelse {
        if (model_of.isSealed(file.memory[0..file.size])) return message.fail(error.Password, "encrypted model: expected its key file and password, found no --key\nfix: give both: --key modelKey.bin --password-file FILE", .{});
        return model.openOwned(file, .{});
    };
    const key = try platform.readFile(key_path, 1 << 20, null);
    defer platform.unmap(key.memory);
    const password_path = options.password_file orelse return message.fail(error.Usage, "--password-file: expected the file with the password, found none\nfix: give it beside --key", .{});
    const password = if (std.mem.eql(u8, password_path, "-")) try platform.readInput(1 << 12) else try platform.readFile(password_path, 1 << 20, null);
    defer platform.wipe(password.memory);
    platform.hide(password.memory);
    var text: []const u8 = password.memory[0..password.size];
    if (std.mem.endsWith(u8, text, "\n")) text = text[0 .. text.len - 1];
    if (std.mem.endsWith(u8, text, "\r")) text = text[0 .. text.len - 1];
    return model.openOwned(file, .{ .key = key.memory[0..key.size], .password = text });
}

// ---- inputs ----

fn makeInputs(options: *const Options, model: *const Model, inputs: []Array) Error!void {
    const ports = model.program.inputs;
    for (inputs) |*input| input.* = .{ .data = null, .size = 0, .shape = @splat(-1) };
    for (options.inputs.all(), 0..) |item, position| {
        const index = try find(ports, item.name, position, "input");
        const file = try npy.read(item.value);
        try fits(ports[index], file, item.value);
        inputs[index] = file.array;
    }
    var prng: std.Random.DefaultPrng = .init(0);
    for (ports, inputs) |port, *input| {
        if (input.data != null) continue;
        for (port.shape[0..@intCast(port.rank)], input.shape[0..@intCast(port.rank)]) |wanted, *extent| {
            extent.* = if (wanted >= 0) wanted else try sizeOf(options, model, inputs, ~wanted);
        }
        input.size = @intCast(p.bytes(port.dtype, input.shape[0..@intCast(port.rank)]) orelse return message.fail(error.Input, "input {s}: expected a shape, found one that is too large\nfix: give smaller sizes", .{port.name}));
        const memory = try platform.map(input.size);
        compare.fill(prng.random(), port.dtype, memory[0..input.size]);
        input.data = memory.ptr;
    }
    try agree(options, model, inputs);
}

/// Refuse sizes of what is no open extent of an input, and what is no size.
fn checkSizes(options: *const Options, model: *const Model) Error!void {
    const program = &model.program;
    for (options.sizes.all()) |item| {
        const name = item.name orelse return message.fail(error.Usage, "--size: expected NAME=N, found {s}\nfix: give the name of an open size, and a whole number", .{item.value});
        const is_known = for (program.extents, 0..) |known, index| {
            if (std.mem.eql(u8, known, name) and isOpen(program, index)) break true;
        } else false;
        if (!is_known) return unknownSize(program, name);
        _ = std.fmt.parseInt(u32, item.value, 10) catch return message.fail(error.Usage, "--size: expected {s}=N, found {s}\nfix: give a whole number", .{ name, item.value });
    }
}

fn isOpen(program: *const p.Program, extent: usize) bool {
    for (program.inputs) |port| for (port.shape[0..@intCast(port.rank)]) |wanted| if (wanted < 0 and ~wanted == extent) return true;
    return false;
}

fn unknownSize(program: *const p.Program, name: []const u8) Error {
    var text: [400]u8 = undefined;
    var used: usize = 0;
    for (program.extents, 0..) |known, index| if (isOpen(program, index)) {
        used += message.fill(text[used..], "{s}{s}", .{ if (used == 0) "" else ", ", @as([]const u8, known) });
    };
    if (used == 0) return message.fail(error.Usage, "--size: expected a library with open sizes, found {s} for one that has none\nfix: leave it out", .{name});
    return message.fail(error.Usage, "--size: expected an open size of the library: {s}, found {s}\nfix: give one of those", .{ text[0..used], name });
}

/// Refuse sizes that are not those of the inputs: a file fixes another, or another --size does.
fn agree(options: *const Options, model: *const Model, inputs: []const Array) Error!void {
    for (options.sizes.all()) |item| {
        const size = std.fmt.parseInt(u32, item.value, 10) catch unreachable; // checkSizes has seen it
        for (model.program.inputs, inputs) |port, input| for (port.shape[0..@intCast(port.rank)], input.shape[0..@intCast(port.rank)]) |wanted, found| {
            if (wanted >= 0 or found == size or !std.mem.eql(u8, model.program.extents[@intCast(~wanted)], item.name.?)) continue;
            return message.fail(error.Usage, "--size: expected {s}={d}, which input {s} has, found {s}\nfix: leave it out, or give inputs of that size", .{ item.name.?, found, port.name, item.value });
        };
    }
}

fn fits(port: p.Port, file: npy.File, path: []const u8) Error!void {
    const is_bits = port.dtype.code == 4 and file.dtype.code == 1 and file.dtype.bits == port.dtype.bits; // bfloat16
    if ((is_bits or file.dtype.equals(port.dtype)) and file.rank == port.rank) return;
    var wanted: [64]u8 = undefined;
    var found: [64]u8 = undefined;
    return message.fail(error.Input, "input {s}: expected {s} of {d} axes, found {s} of {d} in {s}\nfix: give an array that fits the model", .{ port.name, dtypeName(&wanted, port.dtype), port.rank, dtypeName(&found, file.dtype), file.rank, path });
}

/// The size of an open extent: as asked, or that of an input which has it, or 1.
fn sizeOf(options: *const Options, model: *const Model, inputs: []const Array, extent: i64) Error!i64 {
    const name = model.program.extents[@intCast(extent)];
    for (options.sizes.all()) |item| {
        if (!std.mem.eql(u8, item.name orelse "", name)) continue;
        return std.fmt.parseInt(u32, item.value, 10) catch unreachable; // checkSizes has seen it
    }
    for (model.program.inputs, inputs) |port, input| {
        if (input.data == null) continue;
        for (port.shape[0..@intCast(port.rank)], input.shape[0..@intCast(port.rank)]) |wanted, found| if (wanted == ~extent) return found;
    }
    return 1;
}

fn find(ports: []const p.Port, name: ?[]const u8, position: usize, comptime what: [:0]const u8) Error!usize {
    const wanted = name orelse {
        if (position < ports.len) return position;
        return message.fail(error.Usage, "command line: expected at most {d} " ++ what ++ "s, found more\nfix: give one file for each", .{ports.len});
    };
    for (ports, 0..) |port, index| if (std.mem.eql(u8, std.mem.span(port.name), wanted)) return index;
    const first = if (ports.len > 0) ports[0].name else "none";
    return message.fail(error.Usage, "command line: expected the name of an " ++ what ++ ", such as {s}, found {s}\nfix: give a name that the library has: forge-run MODEL lists them", .{ first, wanted });
}

// ---- runs ----

const Times = struct { open: u64 = 0, first: u64 = 0, cpu: u64 = 0, samples: u64 = 0, length: i64 = 0, runs: []u64 = &.{} };

fn runFirst(session: *Session, inputs: []const Array, outputs: []Array, times: *Times) Error!void {
    const start = platform.now(.wall);
    try once(session, inputs, outputs);
    times.first = platform.now(.wall) - start;
}

fn measure(options: *const Options, arena: std.mem.Allocator, session: *Session, inputs: []const Array, outputs: []Array, times: *Times) Error!void {
    session.is_profiling = options.profile;
    times.runs = arena.alloc(u64, options.runs) catch return noMemory();
    const cpu = platform.now(.cpu);
    const start = platform.now(.wall);
    for (times.runs, 0..) |*time, count| {
        if (session.length != times.length) try session.rewind(times.length);
        const before = platform.now(.wall);
        if (count >= 3 and @as(f64, @floatFromInt(before - start)) > options.seconds * 1e9) {
            times.runs.len = count;
            break;
        }
        try once(session, inputs, outputs);
        time.* = platform.now(.wall) - before;
    }
    times.cpu = platform.now(.cpu) - cpu;
    if (session.length != times.length) try session.rewind(times.length);
    if (options.profile and options.runs == 0) try once(session, inputs, outputs);
    std.sort.heap(u64, times.runs, {}, std.sort.asc(u64));
}

/// Run with each sample, write what comes of it, and measure with the last.
fn runSamples(options: *const Options, arena: std.mem.Allocator, session: *Session, inputs: []Array, outputs: []Array, times: *Times) Error!void {
    const program = session.model.program;
    const given = options.inputs.all();
    if (given.len != program.inputs.len or given.len == 0) return message.fail(error.Usage, "--samples: expected a file for each of {d} inputs, found {d}\nfix: give one for each", .{ program.inputs.len, given.len });
    const readers = arena.alloc(samples.Reader, given.len) catch return noMemory();
    for (given, readers) |item, *reader| reader.* = try .open(item.value);
    defer for (readers) |*reader| reader.close();
    const paths = arena.alloc([:0]const u8, outputs.len) catch return noMemory();
    const files = arena.alloc(i32, outputs.len) catch return noMemory();
    if (options.output) |folder| for (paths, files, 0..) |*path, *file, index| {
        path.* = std.fmt.allocPrintSentinel(arena, "{s}/out{d}.npy", .{ folder, index }, 0) catch return noMemory();
        file.* = try platform.create(path.*);
    };
    while (try nextSample(options, session.model, readers, inputs)) {
        times.length = session.length; // from where the last sample went on: measured runs do again
        if (times.samples == 0) try runFirst(session, inputs, outputs, times) else try once(session, inputs, outputs);
        times.samples += 1;
        if (options.output != null) for (program.outputs, outputs, paths, files) |port, output, path, file|
            try npy.append(file, path, port.dtype, output.shape[0..@intCast(port.rank)], bytesOf(output));
    }
    if (times.samples == 0) return message.fail(error.Input, "--samples: expected at least one array in each file, found none\nfix: write them with numpy.save, to one open file", .{});
    try measure(options, arena, session, inputs, outputs, times);
}

/// Whether there was a sample, of which `inputs` then are.
fn nextSample(options: *const Options, model: *const Model, readers: []samples.Reader, inputs: []Array) Error!bool {
    const ports = model.program.inputs;
    var count: usize = 0;
    for (options.inputs.all(), readers, 0..) |item, *reader, position| {
        const file = try reader.next() orelse continue;
        const index = try find(ports, item.name, position, "input");
        try fits(ports[index], file, item.value);
        inputs[index] = file.array;
        count += 1;
    }
    if (count != 0 and count != readers.len) return message.fail(error.Input, "--samples: expected as many arrays in each file, found one that ends before others\nfix: write all inputs of each sample", .{});
    if (count != 0) try agree(options, model, inputs);
    return count != 0;
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

fn expect(options: *const Options, model: *const Model, outputs: []const Array, item: options_of.Named, position: usize) Error!void {
    const index = try find(model.program.outputs, item.name, position, "output");
    const port = model.program.outputs[index];
    const output = outputs[index];
    const file = try npy.read(item.value);
    defer if (file.array.data) |data| platform.unmap(@alignCast(data[0..std.mem.alignForward(usize, @max(1, file.array.size), platform.pageSize())]));
    const is_same = file.dtype.equals(port.dtype) and file.rank == port.rank and std.mem.eql(i64, file.array.shape[0..file.rank], output.shape[0..file.rank]);
    if (!is_same) return message.fail(error.Input, "output {s}: expected the dtype and shape of {s}, found others\nfix: compare with an array that the same model gave for the same inputs", .{ port.name, item.value });
    const found = compare.arrays(port.dtype, bytesOf(output), bytesOf(file.array), options.rtol, options.atol);
    var texts: [3][16]u8 = undefined;
    if (found.wrong != 0) return message.fail(error.Input, "output {s}: expected {s} within rtol {s}, atol {s}, found {d} of {d} elements outside, by {s} at most\nfix: compare inputs and model with those that gave it, or give other tolerances", .{ port.name, item.value, shown(&texts[0], options.rtol), shown(&texts[1], options.atol), found.wrong, found.elements, shown(&texts[2], found.greatest) });
    if (!options.json) print("output {s}: as expected, differs by {f} at most\n", .{ port.name, Decimal{ .of = found.greatest } });
}

// ---- what is said ----

fn shown(text: *[16]u8, value: f64) []const u8 {
    return std.fmt.bufPrint(text, "{f}", .{Decimal{ .of = value }}) catch unreachable;
}

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

fn reportPort(comptime what: [:0]const u8, port: p.Port, shape: []const i64) void {
    var text: [64]u8 = undefined;
    print(what ++ " {s}: {s} [", .{ port.name, dtypeName(&text, port.dtype) });
    for (shape, 0..) |extent, axis| print("{s}{d}", .{ if (axis == 0) "" else ", ", extent });
    print("]\n", .{});
}

fn quantile(sorted: []const u64, percent: usize) Milliseconds {
    return .{ .of = sorted[@min(sorted.len - 1, sorted.len * percent / 100)] };
}

/// KiB that the process had at most: not of `getrusage`, which starts with what the parent had.
fn peak() usize {
    var buffer: [4096]u8 = undefined;
    const said = platform.readSome("/proc/self/status", &buffer);
    const at = std.mem.indexOf(u8, said, "VmHWM:") orelse return 0;
    var words = std.mem.tokenizeAny(u8, said[at + 6 ..], " \t\n");
    return std.fmt.parseInt(usize, words.next() orelse "0", 10) catch 0;
}

fn report(options: *const Options, model: *const Model, inputs: []const Array, outputs: []const Array, times: *const Times) void {
    for (model.program.inputs, inputs) |port, input| reportPort("input", port, input.shape[0..@intCast(port.rank)]);
    for (model.program.outputs, outputs) |port, output| reportPort("output", port, output.shape[0..@intCast(port.rank)]);
    if (model.variant) |name| print("variant {s}\n", .{name});
    print("opened in {f} ms, first run {f} ms\n", .{ Milliseconds{ .of = times.open }, Milliseconds{ .of = times.first } });
    if (times.runs.len > 0) {
        var total: u64 = 0;
        for (times.runs) |time| total += time;
        print("{d} runs, {d} threads: least {f} ms, p50 {f}, p90 {f}, p99 {f}; {d} a second; CPU {f} ms a run\n", .{ times.runs.len, options.threads, quantile(times.runs, 0), quantile(times.runs, 50), quantile(times.runs, 90), quantile(times.runs, 99), times.runs.len * 1_000_000_000 / @max(1, total), Milliseconds{ .of = times.cpu / times.runs.len } });
    }
    if (options.memory) print("weights {d} bytes, arena {d} bytes, peak of the process {d} KiB\n", .{ model.weights.len, model.scratch(), peak() });
}

fn reportJson(options: *const Options, model: *const Model, times: *const Times) void {
    print("{{\"open_ms\": {f}, \"first_ms\": {f}, \"runs\": {d}, \"threads\": {d}", .{ Milliseconds{ .of = times.open }, Milliseconds{ .of = times.first }, times.runs.len, options.threads });
    if (times.runs.len > 0) {
        print(", \"least_ms\": {f}, \"p50_ms\": {f}, \"p90_ms\": {f}, \"p99_ms\": {f}, \"cpu_ms\": {f}", .{ quantile(times.runs, 0), quantile(times.runs, 50), quantile(times.runs, 90), quantile(times.runs, 99), Milliseconds{ .of = times.cpu / times.runs.len } });
    }
    if (options.samples) print(", \"samples\": {d}", .{times.samples});
    print(", \"weights\": {d}, \"arena\": {d}, \"peak_kib\": {d}}}\n", .{ model.weights.len, model.scratch(), peak() });
}

/// Kernels, those that took longest first.
fn reportProfile(arena: std.mem.Allocator, session: *const Session) Error!void {
    const names = session.model.program.kernels;
    const counts = arena.alloc(u64, 2 * names.len) catch return noMemory();
    const times, const calls = .{ counts[0..names.len], counts[names.len..] };
    @memset(counts, 0);
    var total: u64 = 0;
    var places = session.places();
    while (places.next()) |place| {
        times[place.number] += place.spent.nanoseconds;
        calls[place.number] += place.spent.calls;
        total += place.spent.nanoseconds;
    }
    for (names) |_| {
        const next = std.mem.indexOfMax(u64, times);
        if (times[next] == 0) return;
        print("{d: >3} %  {f} ms  {d: >6} calls  {s}\n", .{ times[next] * 100 / total, Milliseconds{ .of = times[next] }, calls[next], names[next] });
        times[next] = 0;
    }
}
