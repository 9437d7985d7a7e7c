import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** A model and one session: one call at a time. On Android, `jni.c` is part of the app, and the files lie in its folder. */
public final class Forge implements AutoCloseable {
    static { System.loadLibrary("forge_jni"); }

    private long handle;

    public Forge(String path, int threads) { handle = open(path, threads); }

    /** Both are direct buffers, in the machine's order of bytes; returns how many bytes of the output were written. */
    public synchronized long run(ByteBuffer input, long[] shape, ByteBuffer output) {
        if (handle == 0) throw new IllegalStateException("expected a model, found one that was closed");
        if (!input.isDirect() || !output.isDirect()) throw new IllegalArgumentException("expected direct buffers");
        return run(handle, input, shape, output);
    }

    @Override public synchronized void close() { close(handle); handle = 0; }

    private static native long open(String path, int threads);
    private static native long run(long handle, ByteBuffer input, long[] shape, ByteBuffer output);
    private static native void close(long handle);

    public static void main(String[] arguments) {
        long[] shape = new long[arguments.length - 1];
        long elements = 1;
        for (int axis = 0; axis < shape.length; axis++) elements *= shape[axis] = Long.parseLong(arguments[axis + 1]);
        ByteBuffer zeros = ByteBuffer.allocateDirect((int) (4 * elements));
        ByteBuffer output = ByteBuffer.allocateDirect(1 << 20).order(ByteOrder.nativeOrder());
        try (Forge model = new Forge(arguments[0], 1)) {
            long size = model.run(zeros, shape, output);
            for (int at = 0; at < size; at += 4) System.out.println(output.getFloat(at));
        }
    }
}
