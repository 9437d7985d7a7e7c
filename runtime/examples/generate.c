/* Writes on, greedily, from a prompt, with a decoder whose caches its session keeps (compile.state): its one input is a row
 * of tokens, its first output a row of scores for each of them. ./generate LIBRARY COUNT TOKEN... */
#include <stdio.h>
#include <stdlib.h>

#include "forge.h"

int main(int count, char **words) {
    forge_model *model = NULL;
    forge_session *session = NULL;
    if (count < 4) return 2;
    int64_t tokens = count - 3, *ids = malloc(sizeof(int64_t) * (size_t)tokens);
    for (int i = 0; i < tokens; i++) ids[i] = atoll(words[3 + i]);
    int failed = forge_open(words[1], NULL, NULL, 0, &model) || forge_start(model, 1, &session);
    for (int left = atoi(words[2]); !failed && left > 0; left--) {
        forge_array input = {ids, sizeof(int64_t) * (size_t)tokens, {1, tokens}}; /* the prompt, then a token at a time */
        forge_array output = {NULL, 0, {0}};
        failed = forge_run(session, &input, &output);
        if (failed) break;
        int64_t rows = output.shape[1], size = output.shape[2], best = 0;
        const float *scores = (const float *)output.data + (rows - 1) * size;
        for (int64_t i = 1; i < size; i++) best = scores[i] > scores[best] ? i : best;
        printf("%lld\n", (long long)best);
        ids[0] = best;
        tokens = 1;
    }
    if (failed) fprintf(stderr, "error: %s\n", forge_message());
    free(ids);
    forge_stop(session);
    forge_close(model);
    return failed;
}
