//! The command line of `forge-run`.
const std = @import("std");
const decimal = @import("decimal.zig");
const message = @import("core").message;
const Error = message.Error;

pub const help =
    \\Usage: forge-run MODEL [INPUT.npy | NAME=INPUT.npy]... [OPTIONS]
    \\
    \\Runs a library of forge-pipeline; a program that has its model inside takes no MODEL. Inputs without a file are random: the same at each start.
    \\
    \\  --size NAME=N           size of an open extent, for random inputs; 1 without
    \\  --expect [NAME=]FILE    compare an output with this array; by position without a name
    \\  --rtol X, --atol X      tolerance: |found - expected| <= atol + rtol |expected|; 1e-3 and 1e-5 without
    \\  --output FOLDER         write outputs there, as out0.npy, out1.npy, ...
    \\  --samples               input files hold arrays one after another, as numpy.save appends them; run the model with
    \\                          each in turn, and write outputs likewise; --runs are of the last
    \\  --runs N                run N times after the first, and say how long they took
    \\  --seconds S             start no more runs after S seconds, once there were three
    \\  --threads N             1 without
    \\  --cpus N,N,...          keep threads on these CPUs, taken in turn
    \\  --profile               time by kernel, of these runs
    \\  --memory                bytes of weights and arena, and the most that the process had
    \\  --key FILE              key file of an encrypted model
    \\  --password-file FILE    its password, - for standard input; one newline at the end does not count
    \\  --trusted FILE          public keys, a line each: run only what one of them signed
    \\  --signature FILE        its signature; MODEL.sig without
    \\  --variant NAME          of a library for several CPUs; without, the best for this one
    \\  --json                  say all of it as one line of JSON
    \\  --help, --version
    \\
    \\Exit codes: 0 done, 1 a failure of inputs or environment, or outputs that are not those expected, 2 usage.
    \\
;

pub const Named = struct { name: ?[]const u8, value: [:0]const u8 };
const limit = 256;

fn List(comptime T: type) type {
    return struct {
        items: [limit]T = undefined,
        count: usize = 0,

        fn add(list: *@This(), item: T) Error!void {
            if (list.count == limit) return message.fail(error.Usage, "command line: expected at most {d} of a kind, found more\nfix: give fewer", .{limit});
            list.items[list.count] = item;
            list.count += 1;
        }

        pub fn all(list: *const @This()) []const T {
            return list.items[0..list.count];
        }
    };
}

pub const Options = struct {
    model: ?[:0]const u8 = null,
    inputs: List(Named) = .{},
    expected: List(Named) = .{},
    sizes: List(Named) = .{},
    rtol: f64 = 1e-3,
    atol: f64 = 1e-5,
    output: ?[:0]const u8 = null,
    runs: u32 = 0,
    seconds: f64 = std.math.inf(f64),
    threads: u32 = 1,
    cpus: List(u32) = .{},
    samples: bool = false,
    profile: bool = false,
    memory: bool = false,
    json: bool = false,
    key: ?[:0]const u8 = null,
    password_file: ?[:0]const u8 = null,
    trusted: ?[:0]const u8 = null,
    signature: ?[:0]const u8 = null,
    variant: ?[:0]const u8 = null,
    help: bool = false,
    version: bool = false,
};

fn number(comptime T: type, option: []const u8, text: []const u8) Error!T {
    const wrong = "{s}: expected a number, found {s}\nfix: see forge-run --help";
    if (T == f64) {
        const value = decimal.parse(text) orelse return message.fail(error.Usage, wrong, .{ option, text });
        return value;
    }
    return std.fmt.parseInt(T, text, 10) catch message.fail(error.Usage, wrong, .{ option, text });
}

fn named(text: [:0]const u8) Named {
    const at = std.mem.indexOfScalar(u8, text, '=') orelse return .{ .name = null, .value = text };
    return .{ .name = text[0..at], .value = text[at + 1 ..] };
}

/// Read the arguments, without the program's own name. Raises Usage.
pub fn parse(options: *Options, arguments: anytype) Error!void {
    while (arguments.next()) |argument| {
        if (argument.len < 2 or argument[0] != '-') {
            if (options.model == null) options.model = argument else try options.inputs.add(named(argument));
            continue;
        }
        if (flag(options, argument)) continue;
        const is_known = for ([_][]const u8{ "--size", "--expect", "--rtol", "--atol", "--output", "--runs", "--seconds", "--threads", "--cpus", "--key", "--password-file", "--trusted", "--signature", "--variant" }) |known| {
            if (std.mem.eql(u8, known, argument)) break true;
        } else false;
        if (!is_known) return message.fail(error.Usage, "command line: expected an option, found {s}\nfix: see forge-run --help", .{argument});
        const value: [:0]const u8 = arguments.next() orelse return message.fail(error.Usage, "{s}: expected a value after it, found none\nfix: see forge-run --help", .{argument});
        if (std.mem.eql(u8, argument, "--size")) try options.sizes.add(named(value));
        if (std.mem.eql(u8, argument, "--expect")) try options.expected.add(named(value));
        if (std.mem.eql(u8, argument, "--rtol")) options.rtol = try number(f64, argument, value);
        if (std.mem.eql(u8, argument, "--atol")) options.atol = try number(f64, argument, value);
        if (std.mem.eql(u8, argument, "--output")) options.output = value;
        if (std.mem.eql(u8, argument, "--runs")) options.runs = try number(u32, argument, value);
        if (std.mem.eql(u8, argument, "--seconds")) options.seconds = try number(f64, argument, value);
        if (std.mem.eql(u8, argument, "--threads")) options.threads = try number(u32, argument, value);
        if (std.mem.eql(u8, argument, "--cpus")) {
            var cpus = std.mem.splitScalar(u8, value, ',');
            while (cpus.next()) |cpu| try options.cpus.add(try number(u32, argument, cpu));
        }
        if (std.mem.eql(u8, argument, "--key")) options.key = value;
        if (std.mem.eql(u8, argument, "--password-file")) options.password_file = value;
        if (std.mem.eql(u8, argument, "--trusted")) options.trusted = value;
        if (std.mem.eql(u8, argument, "--signature")) options.signature = value;
        if (std.mem.eql(u8, argument, "--variant")) options.variant = value;
    }
}

fn flag(options: *Options, argument: []const u8) bool {
    inline for (.{ "samples", "profile", "memory", "json", "help", "version" }) |name| if (std.mem.eql(u8, argument, "--" ++ name)) {
        @field(options, name) = true;
        return true;
    };
    return false;
}
