#include <jni.h>
#include <stdlib.h>

#include "forge.h"

struct opened { forge_model *model; forge_session *session; };

static jlong refused(JNIEnv *java) {
    (*java)->ThrowNew(java, (*java)->FindClass(java, "java/lang/IllegalStateException"), forge_message());
    return 0;
}

JNIEXPORT void JNICALL Java_Forge_close(JNIEnv *java, jclass class, jlong handle) {
    struct opened *opened = (struct opened *)(intptr_t)handle;
    (void)java, (void)class;
    if (opened == NULL) return;
    if (opened->session) forge_stop(opened->session);
    if (opened->model) forge_close(opened->model);
    free(opened);
}

JNIEXPORT jlong JNICALL Java_Forge_open(JNIEnv *java, jclass class, jstring path, jint threads) {
    struct opened *opened = calloc(1, sizeof *opened);
    const char *name = (*java)->GetStringUTFChars(java, path, NULL);
    int failed = opened == NULL || name == NULL || forge_open(name, NULL, NULL, 0, &opened->model) ||
                 forge_start(opened->model, threads, &opened->session);
    if (name) (*java)->ReleaseStringUTFChars(java, path, name);
    if (!failed) return (jlong)(intptr_t)opened;
    if (name) refused(java); /* else Java has said so */
    Java_Forge_close(java, class, (jlong)(intptr_t)opened);
    return 0;
}

JNIEXPORT jlong JNICALL Java_Forge_run(JNIEnv *java, jclass class, jlong handle, jobject input, jlongArray shape, jobject output) {
    struct opened *opened = (struct opened *)(intptr_t)handle;
    forge_array in = {(*java)->GetDirectBufferAddress(java, input), (size_t)(*java)->GetDirectBufferCapacity(java, input), {0}};
    forge_array out = {(*java)->GetDirectBufferAddress(java, output), (size_t)(*java)->GetDirectBufferCapacity(java, output), {0}};
    jsize rank = (*java)->GetArrayLength(java, shape);
    (void)class;
    (*java)->GetLongArrayRegion(java, shape, 0, rank < FORGE_MAX_RANK ? rank : FORGE_MAX_RANK, (jlong *)in.shape);
    return forge_run(opened->session, &in, &out) ? refused(java) : (jlong)out.size;
}
