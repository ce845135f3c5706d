package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "example.com/client/embedding"
)

// embed asks until the context ends, as long as the service says that another try can help.
func embed(ctx context.Context, client pb.EmbeddingsClient, texts ...string) ([][]float32, error) {
	request := &pb.EmbedRequest{InputType: pb.InputType_INPUT_TYPE_QUERY}
	for _, text := range texts {
		request.Inputs = append(request.Inputs, &pb.Input{Input: &pb.Input_Text{Text: text}})
	}
	for {
		answer, err := client.Embed(ctx, request)
		if err == nil {
			return vectors(answer)
		}
		delay, again := retryDelay(err)
		if !again {
			return nil, err
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func retryDelay(err error) (time.Duration, bool) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.RetryDelay.AsDuration(), true
		}
	}
	return 0, false
}

func vectors(answer *pb.EmbedResponse) ([][]float32, error) {
	var all [][]float32
	for _, found := range answer.Embeddings {
		if found.Status.Code != 0 {
			return nil, fmt.Errorf("code %d: %s", found.Status.Code, found.Status.Message)
		}
		vector := make([]float32, found.Dimensions)
		for i := range vector {
			vector[i] = math.Float32frombits(binary.LittleEndian.Uint32(found.Embedding[4*i:]))
		}
		all = append(all, vector)
	}
	return all, nil
}

func main() {
	target, named := os.LookupEnv("EMBED_TARGET")
	if !named {
		target = "localhost:50051"
	}
	connection, err := grpc.Dial(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := pb.NewEmbeddingsClient(connection)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	found, err := embed(ctx, client, "who wrote the art of war", "how deep is the ocean")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("vectors:", len(found), "dimensions:", len(found[0]))

	stream, err := client.EmbedStream(ctx)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for n := 0; n < 100; n++ {
			input := &pb.Input{Input: &pb.Input_Text{Text: fmt.Sprint("question ", n)}}
			if stream.Send(&pb.EmbedRequest{RequestId: fmt.Sprint(n), Inputs: []*pb.Input{input}}) != nil {
				return
			}
		}
		stream.CloseSend()
	}()
	answered := 0
	for {
		answer, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		if answer.Status.GetCode() == 0 {
			answered++
		}
	}
	fmt.Println("streamed:", answered)
}
