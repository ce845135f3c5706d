import com.google.protobuf.Any;
import com.google.rpc.RetryInfo;
import embedding.v1.EmbeddingOuterClass.EmbedRequest;
import embedding.v1.EmbeddingOuterClass.EmbedResponse;
import embedding.v1.EmbeddingOuterClass.Embedding;
import embedding.v1.EmbeddingOuterClass.Input;
import embedding.v1.EmbeddingOuterClass.InputType;
import embedding.v1.EmbeddingsGrpc;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

public class Embed {
    /** Asks until the deadline, as long as the service says that another try can help. */
    static List<float[]> embed(EmbeddingsGrpc.EmbeddingsBlockingStub stub, long timeoutMillis, String... texts)
            throws Exception {
        EmbedRequest.Builder request = EmbedRequest.newBuilder().setInputType(InputType.INPUT_TYPE_QUERY);
        for (String text : texts) {
            request.addInputs(Input.newBuilder().setText(text));
        }
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        while (true) {
            try {
                long left = end - System.nanoTime();
                return vectors(stub.withDeadlineAfter(left, TimeUnit.NANOSECONDS).embed(request.build()));
            } catch (StatusRuntimeException error) {
                long delay = retryDelayMillis(error);
                if (delay < 0 || System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(delay) > end) {
                    throw error;
                }
                Thread.sleep(delay);
            }
        }
    }

    static long retryDelayMillis(StatusRuntimeException error) throws Exception {
        com.google.rpc.Status status = StatusProto.fromThrowable(error);
        for (Any detail : status.getDetailsList()) {
            if (detail.is(RetryInfo.class)) {
                com.google.protobuf.Duration delay = detail.unpack(RetryInfo.class).getRetryDelay();
                return delay.getSeconds() * 1000 + delay.getNanos() / 1_000_000;
            }
        }
        return -1;
    }

    static List<float[]> vectors(EmbedResponse answer) {
        List<float[]> all = new ArrayList<>();
        for (Embedding found : answer.getEmbeddingsList()) {
            if (found.getStatus().getCode() != 0) {
                throw new IllegalArgumentException(found.getStatus().getMessage());
            }
            float[] vector = new float[found.getDimensions()];
            found.getEmbedding().asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(vector);
            all.add(vector);
        }
        return all;
    }

    public static void main(String[] arguments) throws Exception {
        String target = System.getenv().getOrDefault("EMBED_TARGET", "localhost:50051");
        ManagedChannel channel = Grpc.newChannelBuilder(target, InsecureChannelCredentials.create()).build();
        List<float[]> found = embed(
                EmbeddingsGrpc.newBlockingStub(channel), 10_000, "who wrote the art of war", "how deep is the ocean");
        System.out.println("vectors: " + found.size() + " dimensions: " + found.get(0).length);

        AtomicInteger answered = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(1);
        StreamObserver<EmbedRequest> requests = EmbeddingsGrpc.newStub(channel)
                .withDeadlineAfter(10, TimeUnit.SECONDS)
                .embedStream(new StreamObserver<EmbedResponse>() {
                    @Override
                    public void onNext(EmbedResponse answer) {
                        answered.addAndGet(answer.getStatus().getCode() == 0 ? 1 : 0);
                    }

                    @Override
                    public void onError(Throwable error) {
                        error.printStackTrace();
                        done.countDown();
                    }

                    @Override
                    public void onCompleted() {
                        done.countDown();
                    }
                });
        for (int n = 0; n < 100; n++) {
            requests.onNext(EmbedRequest.newBuilder()
                    .setRequestId(Integer.toString(n))
                    .addInputs(Input.newBuilder().setText("question " + n))
                    .build());
        }
        requests.onCompleted();
        done.await();
        System.out.println("streamed: " + answered);
        channel.shutdown().awaitTermination(5, TimeUnit.SECONDS);
    }
}
