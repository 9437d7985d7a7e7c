//! The C interface, `forge.h`: handles, numbers for errors, nothing printed, nothing thrown.
const std = @import("std");
const abi = @import("core").abi;
const message = @import("core").message;
const model_of = @import("core").model;
const p = @import("core").program;
const platform = @import("core").platform;
const session_of = @import("core").session;
const signature = @import("core").signature;
const Error = message.Error;
const Model = model_of.Model;
const Session = session_of.Session;
const Array = session_of.Array;

const KernelTime = extern struct { name: [*:0]const u8, calls: u64, nanoseconds: u64 };
/// `forge_source`.
const Source = extern struct {
    path: ?[*:0]const u8 = null,
    file: ?[*]const u8 = null,
    size: usize = 0,
    key_path: ?[*:0]const u8 = null,
    key: ?[*]const u8 = null,
    key_size: usize = 0,
    password: ?[*]const u8 = null,
    password_size: usize = 0,
    max_bytes: usize = 0,
    max_kdf_bytes: usize = 0,
    trusted: ?[*]const u8 = null,
    trusted_size: usize = 0,
    signature_path: ?[*:0]const u8 = null,
    signature: ?[*]const u8 = null,
    signature_size: usize = 0,
    variant: ?[*:0]const u8 = null,
};
const gpa = std.heap.page_allocator;
const key_limit = 1 << 20;
/// `FORGE_SAME`.
const same = -1;

fn code(result: Error!void) c_int {
    if (result) |_| return 0 else |failure| return message.number(failure);
}

fn noMemory() Error {
    return message.fail(error.Memory, "memory: expected room for a handle, found none\nfix: free memory", .{});
}

fn missing(comptime what: [:0]const u8) Error {
    return message.failIn(error.Usage, &.{ .tail = ": expected a pointer, found NULL\nfix: pass what forge.h says" }, what, .{});
}

fn create(made: *?*Model, file: platform.File, secret: model_of.Secret, source: *const Source, comptime opened: anytype) Error!void {
    const is_signed, const model = prepared(source, file) catch |failure| {
        if (opened == Model.openOwned) platform.unmap(file.memory);
        return failure;
    };
    model.* = .{ .is_signed = is_signed, .variant = if (source.variant) |name| std.mem.span(name) else null };
    errdefer destroy(model);
    try opened(model, file, secret);
    made.* = model;
}

/// Whether the file was signed, which it was where keys are given, and room for its model.
fn prepared(source: *const Source, file: platform.File) Error!struct { bool, *Model } {
    if (source.trusted) |keys| {
        const given: ?[]const u8 = if (source.signature) |text| text[0..source.signature_size] else null;
        try signature.check(file.memory[0..file.size], .{ .keys = keys[0..source.trusted_size], .signature = given, .path = source.signature_path, .signed = source.path });
    } else if (source.signature != null or source.signature_path != null) return missing("trusted");
    return .{ source.trusted != null, gpa.create(Model) catch return noMemory() };
}

fn destroy(model: *Model) void {
    model.close();
    gpa.destroy(model);
}

fn open(source: *const Source, made: *?*Model) Error!void {
    if (source.path == null and source.file == null) return missing("path and file");
    var secret: model_of.Secret = .{ .limit = limitOf(source.max_kdf_bytes) };
    if (source.password) |text| secret.password = text[0..source.password_size];
    if (source.key) |bytes| secret.key = bytes[0..source.key_size];
    var key_file: platform.Memory = &.{};
    defer platform.unmap(key_file);
    if (source.key_path) |path| {
        const key = try platform.readFile(path, key_limit, null);
        key_file = key.memory;
        secret.key = key_file[0..key.size];
    }
    const limit = limitOf(source.max_bytes);
    if (source.path) |path| return create(made, try platform.readFile(path, limit, model_of.look), secret, source, Model.openOwned);
    const file = source.file.?[0..source.size];
    if (file.len > limit) return platform.tooLarge("library", file.len, limit);
    if (!model_of.isSealed(file) and @intFromPtr(file.ptr) % abi.alignment == 0)
        return create(made, .{ .memory = @constCast(@alignCast(file)), .size = file.len }, secret, source, openHere);
    try model_of.look(file[0..@min(16, file.len)], file, file.len);
    const copy = try platform.map(file.len);
    @memcpy(copy[0..file.len], file);
    return create(made, .{ .memory = copy, .size = file.len }, secret, source, Model.openOwned);
}

fn openHere(model: *Model, file: platform.File, secret: model_of.Secret) Error!void {
    return model.openHere(file.memory, secret);
}

fn limitOf(given: usize) usize {
    return if (given == 0) 1 << 46 else given;
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
    return forge_open_from(&.{ .path = path, .key_path = key_path, .password = password, .password_size = password_size }, model);
}

pub export fn forge_open_from(source: ?*const Source, model: ?*?*Model) c_int {
    const made = model orelse return code(missing("model"));
    made.* = null;
    return code(open(source orelse return code(missing("source")), made));
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

pub export fn forge_metadata(model: *const Model, size: *usize) [*]const u8 {
    size.* = model.metadata.len;
    return model.metadata.ptr;
}

pub export fn forge_variant(model: *const Model) ?[*:0]const u8 {
    return if (model.variant) |name| name.ptr else null;
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

pub export fn forge_pin(session: *Session, cpus: ?[*]const u32, count: i32) c_int {
    const list = cpus orelse if (count == 0) &[0]u32{} else return code(missing("cpus"));
    return code(exclusively(session, Session.pin, .{list[0..@intCast(@max(0, count))]}));
}

/// `forge_call`.
const Call = extern struct {
    session: ?*Session,
    inputs: ?[*]const Array,
    outputs: ?[*]Array,

    const Lists = struct { session: *Session, inputs: []const Array, outputs: []Array };

    fn lists(call: *const Call) Error!Lists {
        const session = call.session orelse return missing("session");
        const program = &session.model.program;
        const none = [0]Array{};
        const inputs = if (call.inputs) |list| list[0..program.inputs.len] else if (program.inputs.len == 0) none[0..] else return missing("inputs");
        return .{ .session = session, .inputs = inputs, .outputs = (call.outputs orelse return missing("outputs"))[0..program.outputs.len] };
    }
};

fn run(call: *const Call) Error!void {
    const given = try call.lists();
    return given.session.run(given.inputs, given.outputs);
}

fn repeat(call: *const Call) Error!bool {
    const given = try call.lists();
    return given.session.repeat(given.inputs, given.outputs);
}

pub export fn forge_run(session: ?*Session, inputs: ?[*]const Array, outputs: ?[*]Array) c_int {
    return code(run(&.{ .session = session, .inputs = inputs, .outputs = outputs }));
}

pub export fn forge_repeat(call: ?*const Call) c_int {
    const is_same = repeat(call orelse return code(missing("call"))) catch |failure| return message.number(failure);
    return if (is_same) same else 0;
}

pub export fn forge_rewind(session: *Session, length: i64) c_int {
    return code(exclusively(session, Session.rewind, .{length}));
}

pub export fn forge_length(session: *const Session) i64 {
    return session.length;
}

pub export fn forge_cancel(session: *Session) void {
    session.is_cancelled.store(true, .monotonic);
}

pub export fn forge_profile(session: *Session, on: c_int) c_int {
    return code(exclusively(session, setProfile, .{on != 0}));
}

pub export fn forge_places(session: *const Session) i32 {
    var places = session.places();
    var count: i32 = 0;
    while (places.next()) |_| count += 1;
    return count;
}

pub export fn forge_place_time(session: *const Session, index: i32, time: *KernelTime) c_int {
    var places = session.places();
    var left = index;
    while (places.next()) |place| : (left -= 1) if (left == 0) {
        time.* = .{ .name = session.model.program.kernels[place.number].ptr, .calls = place.spent.calls, .nanoseconds = place.spent.nanoseconds };
        return 0;
    };
    return code(message.fail(error.Usage, "place: expected 0 to {d}, found {d}\nfix: ask forge_places", .{ forge_places(session) -| 1, index }));
}

pub export fn forge_message() [*:0]const u8 {
    return message.last();
}
