//! The C interface, `forge.h`: handles, numbers for errors, nothing printed, nothing thrown.
const std = @import("std");
const abi = @import("core").abi;
const message = @import("core").message;
const model_of = @import("core").model;
const p = @import("core").program;
const platform = @import("core").platform;
const session_of = @import("core").session;
const Error = message.Error;
const Model = model_of.Model;
const Session = session_of.Session;
const Array = session_of.Array;

const KernelTime = extern struct { name: [*:0]const u8, calls: u64, nanoseconds: u64 };
const gpa = std.heap.page_allocator;
const key_limit = 1 << 20;

fn code(result: Error!void) c_int {
    if (result) |_| return 0 else |failure| return message.number(failure);
}

fn noMemory() Error {
    return message.fail(error.Memory, "memory: expected room for a handle, found none\nfix: free memory", .{});
}

fn missing(comptime what: []const u8) Error {
    return message.fail(error.Usage, what ++ ": expected a pointer, found NULL\nfix: pass what forge.h says", .{});
}

fn make(made: *?*Model, file: platform.File, secret: ?model_of.Secret) Error!void {
    const model = gpa.create(Model) catch {
        platform.unmap(file.memory);
        return noMemory();
    };
    model.* = .{};
    errdefer destroy(model);
    try model.openOwned(file, secret);
    made.* = model;
}

fn destroy(model: *Model) void {
    model.close();
    gpa.destroy(model);
}

fn open(path: ?[*:0]const u8, key_path: ?[*:0]const u8, password: ?[*]const u8, password_size: usize, made: *?*Model) Error!void {
    const file = try platform.readFile(path orelse return missing("path"), 1 << 46);
    const key_name = key_path orelse return make(made, file, null);
    const key = platform.readFile(key_name, key_limit) catch |failure| {
        platform.unmap(file.memory);
        return failure;
    };
    defer platform.unmap(key.memory);
    return make(made, file, secretOf(key.memory[0..key.size], password, password_size));
}

fn secretOf(key: []const u8, password: ?[*]const u8, size: usize) ?model_of.Secret {
    const text = password orelse return null;
    return .{ .key = key, .password = text[0..size] };
}

fn openMemory(data: ?[*]const u8, size: usize, key: ?[*]const u8, key_size: usize, password: ?[*]const u8, password_size: usize, made: *?*Model) Error!void {
    const file = (data orelse return missing("file"))[0..size];
    if (!model_of.isSealed(file) and @intFromPtr(file.ptr) % abi.alignment == 0) {
        const model = gpa.create(Model) catch return noMemory();
        model.* = .{};
        errdefer destroy(model);
        try model.openHere(@alignCast(file));
        made.* = model;
        return;
    }
    const copy = try platform.map(size);
    @memcpy(copy[0..size], file);
    return make(made, .{ .memory = copy, .size = size }, if (key) |bytes| secretOf(bytes[0..key_size], password, password_size) else null);
}

fn startSession(model: *const Model, threads: i32, made: *?*Session) Error!void {
    const session = gpa.create(Session) catch return noMemory();
    session.* = .{ .model = model };
    errdefer finish(session);
    try session.start(@intCast(@max(0, threads)));
    made.* = session;
}

fn finish(session: *Session) void {
    session.stop();
    gpa.destroy(session);
}

fn exclusively(session: *Session, comptime change: anytype, arguments: anytype) Error!void {
    try session.acquire();
    defer session.give();
    return @call(.auto, change, .{session} ++ arguments);
}

fn setProfile(session: *Session, on: bool) Error!void {
    session.is_profiling = on;
    session.forget();
}

pub export fn forge_open(path: ?[*:0]const u8, key_path: ?[*:0]const u8, password: ?[*]const u8, password_size: usize, model: ?*?*Model) c_int {
    const made = model orelse return code(missing("model"));
    made.* = null;
    return code(open(path, key_path, password, password_size, made));
}

pub export fn forge_open_memory(file: ?[*]const u8, size: usize, key: ?[*]const u8, key_size: usize, password: ?[*]const u8, password_size: usize, model: ?*?*Model) c_int {
    const made = model orelse return code(missing("model"));
    made.* = null;
    return code(openMemory(file, size, key, key_size, password, password_size, made));
}

pub export fn forge_close(model: ?*Model) void {
    if (model) |open_model| destroy(open_model);
}

pub export fn forge_inputs(model: *const Model) i32 {
    return @intCast(model.program.inputs.len);
}

pub export fn forge_outputs(model: *const Model) i32 {
    return @intCast(model.program.outputs.len);
}

fn portOf(ports: []const p.Port, index: i32) ?*const p.Port {
    return if (index < 0 or index >= ports.len) null else &ports[@intCast(index)];
}

pub export fn forge_input(model: *const Model, index: i32) ?*const p.Port {
    return portOf(model.program.inputs, index);
}

pub export fn forge_output(model: *const Model, index: i32) ?*const p.Port {
    return portOf(model.program.outputs, index);
}

pub export fn forge_extent(model: *const Model, index: i64) ?[*:0]const u8 {
    return if (index < 0 or index >= model.program.extents.len) null else model.program.extents[@intCast(index)].ptr;
}

pub export fn forge_target(model: *const Model) [*:0]const u8 {
    return model.program.triple.ptr;
}

pub export fn forge_arena(model: *const Model) usize {
    return model.scratch();
}

pub export fn forge_weights(model: *const Model) usize {
    return model.weights.len;
}

pub export fn forge_start(model: ?*const Model, threads: i32, session: ?*?*Session) c_int {
    const made = session orelse return code(missing("session"));
    made.* = null;
    return code(startSession(model orelse return code(missing("model")), threads, made));
}

pub export fn forge_stop(session: ?*Session) void {
    if (session) |started| finish(started);
}

pub export fn forge_set_threads(session: *Session, threads: i32) c_int {
    return code(exclusively(session, Session.setThreads, .{@as(u32, @intCast(@max(0, threads)))}));
}

pub export fn forge_run(session: ?*Session, inputs: ?[*]const Array, outputs: ?[*]Array) c_int {
    const started = session orelse return code(missing("session"));
    const program = &started.model.program;
    const none = [0]Array{};
    const given = if (inputs) |list| list[0..program.inputs.len] else if (program.inputs.len == 0) none[0..] else return code(missing("inputs"));
    const wanted = (outputs orelse return code(missing("outputs")))[0..program.outputs.len];
    return code(started.run(given, wanted));
}

pub export fn forge_cancel(session: *Session) void {
    session.is_cancelled.store(true, .monotonic);
}

pub export fn forge_profile(session: *Session, on: c_int) c_int {
    return code(exclusively(session, setProfile, .{on != 0}));
}

pub export fn forge_kernels(model: *const Model) i32 {
    return @intCast(model.kernels.len);
}

pub export fn forge_kernel_time(session: *const Session, index: i32, time: *KernelTime) c_int {
    const names = session.model.program.kernels;
    if (index < 0 or index >= names.len) return code(message.fail(error.Usage, "kernel: expected 0 to {d}, found {d}\nfix: ask forge_kernels", .{ names.len -| 1, index }));
    const at: usize = @intCast(index);
    time.* = .{ .name = names[at].ptr, .calls = session.profile.calls[at], .nanoseconds = session.profile.nanoseconds[at] };
    return 0;
}

pub export fn forge_message() [*:0]const u8 {
    return message.last();
}
