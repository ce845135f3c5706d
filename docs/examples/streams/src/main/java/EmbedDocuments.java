import com.google.protobuf.InvalidProtocolBufferException;
import embedding.v1.EmbeddingOuterClass.EmbedRequest;
import embedding.v1.EmbeddingOuterClass.EmbedResponse;
import embedding.v1.EmbeddingOuterClass.Input;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.RecordMetadata;

/** Texts by their keys in, EmbedResponses under the same keys out; those of a text that was replaced are dropped. */
public class EmbedDocuments {
    static final String IN = "documents";
    static final String REQUESTS = "embed.requests.v1";
    static final String REPLIES = "embed.replies.v1";
    static final String OUT = "documents.embedded";
    static final String FAILED = "documents.failed";

    static Topology topology() {
        Serde<String> text = Serdes.String();
        Serde<byte[]> bytes = Serdes.ByteArray();
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, byte[]> requests =
                builder.stream(IN, Consumed.with(text, text)).processValues(ToRequest::new);
        requests.to(REQUESTS, Produced.with(text, bytes));
        KTable<String, byte[]> latest = requests.toTable(Materialized.with(text, bytes));
        KStream<String, byte[]> answered = builder.stream(REPLIES, Consumed.with(text, bytes))
                .join(latest, EmbedDocuments::ifLatest, Joined.with(text, bytes, bytes))
                .filter((key, reply) -> reply != null);
        answered.filter((key, reply) -> code(reply) == 0).to(OUT, Produced.with(text, bytes));
        answered.filter((key, reply) -> code(reply) != 0).to(FAILED, Produced.with(text, bytes));
        return builder.build();
    }

    /** A request that is named by the place of its document, so that a replay asks under the same name. */
    static class ToRequest extends ContextualFixedKeyProcessor<String, String, byte[]> {
        @Override
        public void process(FixedKeyRecord<String, String> document) {
            RecordMetadata place = context().recordMetadata().orElseThrow();
            EmbedRequest request = EmbedRequest.newBuilder()
                    .setRequestId(place.topic() + "-" + place.partition() + "-" + place.offset())
                    .addInputs(Input.newBuilder().setText(document.value()))
                    .build();
            document.headers().add("content-type", "application/x-protobuf".getBytes());
            context().forward(document.withValue(request.toByteArray()));
        }
    }

    static byte[] ifLatest(byte[] reply, byte[] request) {
        return parsed(reply).getRequestId().equals(requestId(request)) ? reply : null;
    }

    static int code(byte[] reply) {
        return parsed(reply).getStatus().getCode();
    }

    static EmbedResponse parsed(byte[] reply) {
        try {
            return EmbedResponse.parseFrom(reply);
        } catch (InvalidProtocolBufferException error) {
            throw new IllegalArgumentException(error);
        }
    }

    private static String requestId(byte[] request) {
        try {
            return EmbedRequest.parseFrom(request).getRequestId();
        } catch (InvalidProtocolBufferException error) {
            throw new IllegalArgumentException(error);
        }
    }
}
