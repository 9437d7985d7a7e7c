/* Runs a model on an input of zeros and prints its first output: run MODEL */
#include <forge.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    forge_model *model = NULL;
    forge_session *session = NULL;
    if (count != 2) return 2;
    if (forge_open(arguments[1], NULL, NULL, 0, &model) || forge_start(model, 1, &session)) {
        fprintf(stderr, "error: %s\n", forge_message());
        return 1;
    }
    const forge_port *port = forge_input(model, 0);
    forge_array input = {NULL, (size_t)port->dtype.bits / 8, {0}};
    for (int axis = 0; axis < port->rank; axis++) {
        input.shape[axis] = port->shape[axis] < 0 ? 1 : port->shape[axis]; /* an open extent: any size */
        input.size *= (size_t)input.shape[axis];
    }
    input.data = calloc(1, input.size);
    forge_array output = {NULL, 0, {0}}; /* no memory given: it stays in the session's */
    int failed = forge_run(session, &input, &output);
    if (failed) fprintf(stderr, "error: %s\n", forge_message());
    for (size_t i = 0; !failed && i < output.size / sizeof(float); i++) printf("%a\n", ((float *)output.data)[i]);
    free(input.data);
    forge_stop(session);
    forge_close(model);
    return failed != FORGE_OK;
}
